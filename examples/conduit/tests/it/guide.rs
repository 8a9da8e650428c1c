//! The code in the guide's page about this application matches the source.

const PAGE: &str = include_str!("../../../../docs/guide/application.md");

#[test]
fn every_piece_of_code_in_the_guide_stands_in_the_file_that_it_names() {
    let mut pieces = 0;
    for (at, _) in PAGE.match_indices("```rust") {
        let file = PAGE[..at].trim_end().lines().last().expect("a line before the code");
        let file = file.trim_matches(|char| char == '`' || char == ':');
        let path = format!("{}/{file}", env!("CARGO_MANIFEST_DIR"));
        let source =
            std::fs::read_to_string(&path).unwrap_or_else(|error| panic!("{path}: {error}"));
        let code = PAGE[at..].split_once('\n').expect("code follows").1;
        let code = code.split_once("```").expect("the block is closed").0;
        assert!(source.contains(code), "{file} does not have:\n{code}");
        pieces += 1;
    }
    assert_eq!(pieces, 6);
}
