//! The fuzz target of the parser.

use crate::error::MultipartError;
use crate::limits::MultipartLimits;
use crate::parser::{Event, Parser};
use bytes::Bytes;

/// Parses the bytes after the first two as a form with the boundary `b`: once whole, and once in
/// chunks whose sizes are given by the first two bytes.
///
/// # Panics
/// If the events differ, or the parser violates an invariant.
pub fn fuzz_one(data: &[u8]) {
    let (&[first, second], form) = data.split_first_chunk::<2>().unwrap_or((&[0, 0], data));
    let form = Bytes::copy_from_slice(form);
    let whole = events(&form, [usize::MAX, usize::MAX]);
    let split = events(&form, [usize::from(first).max(1), usize::from(second).max(1)]);
    assert_eq!(whole, split, "the same bytes must give the same events, however they are split");
}

/// Parses `form` in chunks of alternating `sizes`. Returns all events, with the data of each part
/// joined, and the result.
pub(crate) fn events(form: &Bytes, sizes: [usize; 2]) -> (Vec<Event>, Result<(), MultipartError>) {
    let limits = MultipartLimits {
        fields_max: 20,
        files_max: 5,
        field_bytes_max: 200,
        file_bytes_max: 300,
        total_bytes_max: 1000,
        part_headers_max: 4,
        part_headers_bytes_max: 200,
        ..MultipartLimits::DEFAULT
    };
    let mut parser = Parser::new(b"b", &limits).expect("the boundary is valid");
    let (mut rest, mut sizes, mut events) = (form.clone(), sizes.iter().cycle(), Vec::new());
    while let Some(size) = sizes.next().filter(|_| !rest.is_empty()) {
        let mut input = rest.split_to(rest.len().min(*size));
        loop {
            let event = match parser.receive(&mut input) {
                Ok(Some(event)) => event,
                Ok(None) => break,
                Err(error) => {
                    // How much of the last part was reported before the error depends on the split.
                    events.pop_if(|event| matches!(event, Event::Data(_)));
                    return (events, Err(error));
                }
            };
            match (events.last_mut(), event) {
                (Some(Event::Data(data)), Event::Data(chunk)) => {
                    assert!(!chunk.is_empty(), "chunks are not empty");
                    *data = [&**data, &chunk].concat().into();
                }
                (_, event) => events.push(event),
            }
        }
        assert!(input.is_empty(), "all input is consumed");
        assert!(
            parser.memory_bytes() <= 2 * limits.part_headers_bytes_max,
            "the parser buffers little"
        );
    }
    (events, parser.finish())
}

/// Returns seed forms, each prefixed with two chunk sizes.
#[must_use]
pub fn seeds() -> Vec<Vec<u8>> {
    let field = |head: &str, content: &str| format!("--b\r\n{head}\r\n\r\n{content}\r\n");
    let name = |name: &str| format!("Content-Disposition: form-data; name=\"{name}\"");
    let file = |file: &str| format!("{}; filename={file}", name("f"));
    let forms = [
        field(&name("a"), "1"),
        field(&name("a"), "") + &field(&name("b"), "\r\n--\r\n-b"),
        field(&file("\"x.txt\"\r\nContent-Type: text/plain; charset=utf-8"), "text"),
        field(&file("x"), "a\r\n--ba") + &field(&file("\"a\\\"b%22\""), "\0\r\r\n"),
        field(&file("\"\"; filename*=utf-8'en'%c3%bc"), ""),
        format!("preamble\r\n{}", field(&name("a"), &"x".repeat(190))),
        format!("\r\n{}", field(&file("y"), &"\r".repeat(290))),
        field(&format!("{}\r\nContent-Transfer-Encoding: base64", name("a")), "MQ=="),
        field(&format!("{0}\r\n{0}", name("a")), "1"),
        field("X-Other: 1\r\nContent-Type: text/plain", "1"),
        "--b  \t\r\nContent-Disposition: form-data; name=a\r\n\r\n--b--".to_owned(),
        String::new(),
        field("broken", "1"),
        field(&format!("{}\n", name("a")), "1"),
    ];
    let ends = ["--b--\r\n", "--b--", "--b", "--b--epilogue\r\n--b\r\n", "--bx"];
    let sizes = [[1u8, 1], [2, 3], [5, 1], [7, 11], [255, 1]];
    let forms = forms.iter().zip(ends.iter().cycle()).zip(sizes.iter().cycle());
    forms.map(|((form, end), sizes)| [sizes, form.as_bytes(), end.as_bytes()].concat()).collect()
}
