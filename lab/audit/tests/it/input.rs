//! Bad input is refused with the place and the remedy, and the command's exit codes are as written.

use std::path::Path;

use peregrine_lab_audit::command::{self, EXIT_IMPOSSIBLE, EXIT_INPUT, EXIT_POSSIBLE};
use peregrine_lab_audit::read;

const GOOD: &str = "schema = 1\nid = \"page\"\n\n[source]\ntitle = \"A page\"\n\n[tool]\nname = \"wrk\"\n\
    discipline = \"closed\"\nerrors = \"never\"\n\n[[contenders]]\nid = \"a\"\nlabel = \"A\"\n\n\
    [[scenarios]]\nid = \"S\"\nname = \"s\"\nrequest = \"r\"\nconnections = 10\n\n\
    [[rows]]\nscenario = \"S\"\ncontender = \"a\"\nrate = { text = \"1000\", line = 1 }\n\
    mean = { text = \"4.99 ms\", line = 1 }\n";

/// The error for the good file with one piece replaced.
fn refused(from: &str, to: &str) -> String {
    assert!(GOOD.contains(from), "{from}");
    read::document("pages/x.toml", &GOOD.replacen(from, to, 1)).expect_err(to).to_string()
}

fn run(arguments: &[&str]) -> (u8, String, String) {
    let arguments: Vec<String> = arguments.iter().map(|argument| (*argument).to_owned()).collect();
    let (mut output, mut complaints) = (Vec::new(), Vec::new());
    let code = command::run(&arguments, &mut output, &mut complaints)
        .expect("writing to memory does not fail");
    let text = |bytes| String::from_utf8(bytes).expect("reports are text");
    (code, text(output), text(complaints))
}

#[test]
fn the_good_file_is_good() {
    read::document("x.toml", GOOD).unwrap();
}

#[test]
fn an_error_names_file_line_key_and_remedy() {
    let cases = [
        ("4.99 ms", "4.99 mz", "pages/x.toml:26: rows[0].mean: ", "`mz`"),
        ("\"4.99 ms\"", "4.99", "pages/x.toml:26: rows[0].mean.text: ", "string"),
        ("mean =", "average =", "pages/x.toml:26: rows[0].average: ", "unknown field"),
        (
            "scenario = \"S\"",
            "scenario = \"T\"",
            "pages/x.toml:23: rows[0].scenario: ",
            "use one of: S",
        ),
        (
            "contender = \"a\"",
            "contender = \"b\"",
            "pages/x.toml:24: rows[0].contender: ",
            "`b` is not defined",
        ),
        ("schema = 1", "schema = 2", "pages/x.toml: schema: ", "write schema = 1"),
        ("name = \"wrk\"\n", "", "pages/x.toml:7: tool: ", "missing field `name`"),
        ("\"closed\"", "\"half\"", "pages/x.toml:9: tool.discipline: ", "closed"),
        ("title = \"A page\"", "title = \"A page", "pages/x.toml:5: ", "Fix: "),
        ("title", "sha256 = \"12\"\ntitle", "pages/x.toml: source.sha256: ", "64 digits"),
        (
            "[[rows]]",
            "[[scenarios]]\nid = \"S\"\nname = \"\"\nrequest = \"\"\n[[rows]]",
            "scenarios: ",
            "used twice",
        ),
    ];
    for (from, to, place, words) in cases {
        let error = refused(from, to);
        assert!(error.contains(place), "{to}: {error}");
        assert!(error.contains(words), "{to}: {error}");
        assert!(error.contains("Fix: "), "{to}: {error}");
    }
}

#[test]
fn a_claim_must_agree_with_itself() {
    let claim = "[[contenders]]\nid = \"b\"\nlabel = \"B\"\n[[claims]]\nid = \"c\"\nquote = \"q\"\n\
        scenario = \"S\"\nconnections = 10\nmeasure = \"rate\"\nsubject = \"a\"\nobject = \"b\"\n\
        form = \"percent_more\"\nprinted = \"45.7%\"\nratio = 1.457\n";
    let read = |from: &str, to: &str| {
        assert!(claim.contains(from), "{from}");
        read::document("x.toml", &format!("{GOOD}{}", claim.replacen(from, to, 1)))
    };
    read("", "").unwrap();
    let cases = [
        ("ratio = 1.457", "ratio = 1.5", "claims[0].ratio", "between 1.4565 and 1.4575"),
        ("ratio = 1.457\n", "", "claims[0].ratio", "`ratio` must be subject / object"),
        (
            "ratio = 1.457",
            "ratio = 1.457\nratio_to = 2.0",
            "claims[0].ratio",
            "`ratio_to` has no meaning",
        ),
        ("45.7%", "a lot", "claims[0].printed", "does not begin with a number"),
        ("printed = \"45.7%\"\n", "", "claims[0].printed", "needs `printed`"),
        (
            "connections = 10",
            "connections = 11",
            "claims[0].connections",
            "write the scenario's number",
        ),
        ("object = \"b\"\n", "", "claims[0].object", "add `object`"),
        ("quote = \"q\"\n", "", "claims[0].quote", "quote the sentence"),
        ("\"rate\"", "\"time_per_operation\"", "claims[0].measure", "microbenchmark"),
    ];
    for (from, to, key, words) in cases {
        let error = read(from, to).expect_err(to).to_string();
        assert!(error.contains(key) && error.contains(words), "{to}: {error}");
        assert!(error.starts_with("x.toml:"), "{error}");
    }
}

#[test]
fn a_file_that_is_not_there_is_an_input_error() {
    let error = read::file(Path::new("no/such.toml")).unwrap_err().to_string();
    assert!(error.starts_with("no/such.toml: the file: cannot be read"), "{error}");
    let (code, output, complaints) = run(&["no/such.toml"]);
    assert_eq!((code, output.as_str()), (EXIT_INPUT, ""));
    assert!(complaints.contains("lab/claims/"), "{complaints}");
}

#[test]
fn numbers_by_hand_are_audited() {
    let impossible =
        ["--connections", "500", "--rps", "144342", "--mean", "4.99ms", "--errors", "0"];
    let (code, output, complaints) = run(&impossible);
    assert_eq!((code, complaints.as_str()), (EXIT_IMPOSSIBLE, ""), "{output}");
    assert!(output.contains("719.5 to 721.0 in flight on 500 connections"), "{output}");
    let (code, ..) =
        run(&["--connections", "500", "--rate=144342", "--mean", "3.40ms", "--errors", "0"]);
    assert_eq!(code, EXIT_POSSIBLE);
    let (code, ..) =
        run(&["--open", "--connections", "500", "--rate", "144342", "--mean", "4.99ms"]);
    assert_eq!(code, EXIT_POSSIBLE, "an open loop has no bound");
    let (code, output, _) = run(&["--connections", "30", "--threads", "50"]);
    assert_eq!(code, EXIT_IMPOSSIBLE, "{output}");
}

#[test]
fn a_row_without_requests_has_no_infinite_figures() {
    let (code, output, _) = run(&["--connections", "5", "--rate", "0", "--bytes-per-second", "0B"]);
    assert_eq!(code, EXIT_POSSIBLE);
    assert!(!output.contains("inf ") && !output.contains("NaN"), "{output}");
}

#[test]
fn options_that_cannot_be_used_are_named() {
    let cases: [(&[&str], &str); 7] = [
        (&["--connections", "many"], "--connections: `many` is not a whole number"),
        (&["--mean", "4.99"], "--mean: `4.99` has the unit ``"),
        (&["--mean"], "--mean: has no value"),
        (&["--speed", "9"], "--speed: is not known"),
        (&["--rate", "9", "--rps", "9"], "--rate: is given twice"),
        (&["--format", "yaml", "x.toml"], "--format: `yaml` is not a format"),
        (&["x.toml", "--rate", "9"], "x.toml: is not an option"),
    ];
    for (arguments, words) in cases {
        let (code, _, complaints) = run(arguments);
        assert_eq!(code, EXIT_INPUT, "{arguments:?}");
        assert!(complaints.contains(words) && complaints.contains("Fix: "), "{complaints}");
    }
}

#[test]
fn help_names_every_exit_code() {
    let (code, output, _) = run(&["--help"]);
    assert_eq!(code, EXIT_POSSIBLE);
    for exit in [EXIT_IMPOSSIBLE, EXIT_INPUT, command::EXIT_OUTPUT] {
        assert!(output.contains(&format!("{exit} ")), "{exit}");
    }
    assert_eq!(run(&[]).0, EXIT_INPUT);
}

#[test]
fn markdown_and_json_hold_the_same_page() {
    let numbers = ["--connections", "10", "--rate", "1000", "--mean", "20ms", "--format"];
    let with = |format: &'static str| run(&[&numbers[..], &[format]].concat()).1;
    assert!(with("markdown").contains("| impossible | little-bound | given/row |"));
    let json: serde_json::Value = serde_json::from_str(&with("json")).unwrap();
    assert_eq!(json["findings"][0]["concerns"][0], "given/row");
    assert_eq!(json["rows"][0]["connections"], 10.0);
}
