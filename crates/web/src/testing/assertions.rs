//! Assertions about a response, with messages that show the differences.

use super::TestResponse;
use serde::Serialize;
use serde_json::Value;
use std::fmt::Write as _;

/// The maximum number of differences that a message lists.
const DIFFERENCES_MAX: usize = 20;

impl TestResponse {
    /// Checks the status. Returns the response, for further assertions.
    ///
    /// # Panics
    /// If the status differs; the message contains the body.
    #[track_caller]
    pub fn assert_status(&self, expected: u16) -> &Self {
        let status = self.status();
        assert!(
            status == expected,
            "the status is {status}, not {expected}; the body: {}",
            self.describe()
        );
        self
    }

    /// Checks that the body is this JSON, in any order of object members, and that `Content-Type`
    /// is a JSON type. Returns the response, for further assertions.
    ///
    /// ```
    /// use peregrine::web::{App, extract::Json};
    ///
    /// let client = App::new().get("/", || Json(vec![("a", 1), ("b", 2)])).test();
    /// client.get("/").send_blocking().assert_status(200).assert_json(&[("a", 1), ("b", 2)]);
    /// ```
    ///
    /// # Panics
    /// If the body differs; the message has a line for each difference, with its JSON pointer (RFC
    /// 6901). Also if the body is incomplete or not JSON, or `Content-Type` is not a JSON type.
    #[track_caller]
    pub fn assert_json(&self, expected: &(impl Serialize + ?Sized)) -> &Self {
        let media_type = self.header("content-type").unwrap_or("");
        let media_type = media_type.split(';').next().unwrap_or("").trim().to_ascii_lowercase();
        let is_json = media_type == "application/json" || media_type.ends_with("+json");
        assert!(
            is_json,
            "the Content-Type is {media_type:?}, which is not JSON; the body: {}",
            self.describe()
        );
        let expected =
            serde_json::to_value(expected).expect("the expected value can be written as JSON");
        let Ok(found) = serde_json::from_slice::<Value>(&self.bytes()) else {
            panic!("the body is not JSON: {}", self.describe());
        };
        let diff = differences(&expected, &found);
        assert!(diff.is_empty(), "the body differs from what is expected:\n{diff}");
        self
    }

    /// The body as text, for a message.
    fn describe(&self) -> String {
        String::from_utf8_lossy(&self.bytes()).into_owned()
    }
}

/// A line for each difference; empty if there is none.
fn differences(expected: &Value, found: &Value) -> String {
    let mut lines = Vec::new();
    compare("", expected, found, &mut lines);
    let mut text = String::new();
    for line in lines.iter().take(DIFFERENCES_MAX) {
        let _ = writeln!(text, "  {line}");
    }
    if lines.len() > DIFFERENCES_MAX {
        let _ = writeln!(text, "  and {} more", lines.len() - DIFFERENCES_MAX);
    }
    text
}

fn compare(pointer: &str, expected: &Value, found: &Value, lines: &mut Vec<String>) {
    let location = || if pointer.is_empty() { "the document" } else { pointer };
    match (expected, found) {
        (Value::Object(expected), Value::Object(found)) => {
            let child =
                |name: &str| format!("{pointer}/{}", name.replace('~', "~0").replace('/', "~1"));
            for (name, value) in expected {
                match found.get(name) {
                    Some(found) => compare(&child(name), value, found, lines),
                    None => {
                        lines.push(format!("{}: expected {value}, but it is missing", child(name)))
                    }
                }
            }
            for (name, value) in found.iter().filter(|(name, _)| !expected.contains_key(*name)) {
                lines.push(format!("{}: expected to be absent, but it is {value}", child(name)));
            }
        }
        (Value::Array(expected), Value::Array(found)) => {
            for (index, (expected, found)) in expected.iter().zip(found).enumerate() {
                compare(&format!("{pointer}/{index}"), expected, found, lines);
            }
            let (expected_len, found_len) = (expected.len(), found.len());
            if expected_len != found_len {
                lines.push(format!(
                    "{}: expected {expected_len} elements, but there are {found_len}",
                    location()
                ));
            }
        }
        _ if expected == found => {}
        _ => lines.push(format!("{}: expected {expected}, but it is {found}", location())),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn lists_a_line_for_each_difference() {
        let expected =
            json!({ "a": 1, "b": [1, { "c": "x" }], "d/e~f": null, "same": [1.5, true] });
        let found = json!({ "same": [1.5, true], "b": [2, { "c": "y" }, 3], "a": 1, "g": {} });
        assert_eq!(
            differences(&expected, &found),
            "  /b/0: expected 1, but it is 2\n  /b/1/c: expected \"x\", but it is \"y\"\n  \
             /b: expected 2 elements, but there are 3\n  /d~1e~0f: expected null, but it is missing\n  \
             /g: expected to be absent, but it is {}\n"
        );
        assert_eq!(differences(&expected, &expected), "");
        assert_eq!(
            differences(&json!([]), &json!({})),
            "  the document: expected [], but it is {}\n"
        );
    }

    #[test]
    fn counts_the_differences_over_the_maximum() {
        let text = differences(&json!(vec![0; 30]), &json!(vec![1; 30]));
        assert_eq!(text.lines().count(), DIFFERENCES_MAX + 1);
        assert!(text.ends_with("  and 10 more\n"));
    }
}
