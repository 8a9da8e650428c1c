//! The result of an in-process benchmark.
//!
//! The benchmark writes `{"unit": "ns ..", "cases": [{"case": .., "mode": .., "<contender>": ns}]}`
//! to a file. It is read here as data: the lab does not depend on what was measured.

use std::fmt;

use serde::Serialize;
use serde_json::{Map, Value};

/// One figure of an in-process benchmark.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct MicroRow {
    /// What was done, as in `2 parameters random`.
    pub operation: String,
    /// How it was timed, as in `match` (the lookup alone) or `read` (and every value read).
    pub mode: String,
    /// What did it.
    pub contender: String,
    /// Nanoseconds per operation: the median of the samples.
    pub nanoseconds: f64,
}

/// Why the file of a benchmark cannot be used.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct MicroError {
    /// What is wrong, with the number of the case.
    pub cause: String,
}

impl fmt::Display for MicroError {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(formatter, "the benchmark's result: {}; run the benchmark again", self.cause)
    }
}

impl std::error::Error for MicroError {}

/// Reads what a benchmark wrote: the rows in its order, for each case one per contender by name.
///
/// # Errors
///
/// What the text lacks, if it is not of the form above, or has no figures.
pub fn read(json: &str) -> Result<Vec<MicroRow>, MicroError> {
    let wrong = |cause: String| MicroError { cause };
    let document: Value =
        serde_json::from_str(json).map_err(|error| wrong(format!("it is no JSON: {error}")))?;
    let unit = document.get("unit").and_then(Value::as_str).unwrap_or_default();
    if unit.split_whitespace().next() != Some("ns") {
        return Err(wrong(format!("`unit` is {unit:?} and does not begin with ns")));
    }
    let cases = document.get("cases").and_then(Value::as_array);
    let cases = cases.ok_or_else(|| wrong("`cases` is missing".to_owned()))?;
    let mut rows = Vec::new();
    for (index, case) in cases.iter().enumerate() {
        let in_case = |cause: String| wrong(format!("case {}: {cause}", index + 1));
        let case = case.as_object().ok_or_else(|| in_case("it is no table".to_owned()))?;
        read_case(case, &mut rows).map_err(in_case)?;
    }
    if rows.is_empty() {
        return Err(wrong("it has no figures".to_owned()));
    }
    Ok(rows)
}

fn read_case(case: &Map<String, Value>, rows: &mut Vec<MicroRow>) -> Result<(), String> {
    let text = |key: &str| {
        let value = case.get(key).and_then(Value::as_str);
        value.map(str::to_owned).ok_or_else(|| format!("`{key}` is missing"))
    };
    let (operation, mode) = (text("case")?, text("mode")?);
    for (contender, value) in case {
        if contender == "case" || contender == "mode" {
            continue;
        }
        let nanoseconds = value.as_f64().filter(|value| *value >= 0.0);
        let nanoseconds = nanoseconds.ok_or_else(|| format!("`{contender}` is no time"))?;
        let (operation, mode) = (operation.clone(), mode.clone());
        rows.push(MicroRow { operation, mode, contender: contender.clone(), nanoseconds });
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_figure_becomes_a_row() {
        let rows = read(
            r#"{"unit": "ns per lookup, median", "cases": [
                {"case": "/users hot", "mode": "match", "peregrine": 4.25, "trie": 9},
                {"case": "/users hot", "mode": "read", "peregrine": 5.50}]}"#,
        )
        .unwrap();
        let found: Vec<_> = rows
            .iter()
            .map(|row| (&*row.operation, &*row.mode, &*row.contender, row.nanoseconds))
            .collect();
        let expected = [
            ("/users hot", "match", "peregrine", 4.25),
            ("/users hot", "match", "trie", 9.0),
            ("/users hot", "read", "peregrine", 5.5),
        ];
        assert_eq!(found, expected);
    }

    #[test]
    fn what_is_no_result_is_refused_by_name() {
        let cases = [
            ("", "no JSON"),
            ("[]", "`unit`"),
            (r#"{"unit": "us", "cases": []}"#, "\"us\""),
            (r#"{"unit": "ns"}"#, "`cases`"),
            (r#"{"unit": "ns", "cases": []}"#, "no figures"),
            (r#"{"unit": "ns", "cases": [1]}"#, "case 1"),
            (r#"{"unit": "ns", "cases": [{"mode": "read"}]}"#, "`case`"),
            (r#"{"unit": "ns", "cases": [{"case": "a"}]}"#, "`mode`"),
            (r#"{"unit": "ns", "cases": [{"case": "a", "mode": "b", "c": "1"}]}"#, "`c`"),
            (r#"{"unit": "ns", "cases": [{"case": "a", "mode": "b", "c": -1}]}"#, "`c`"),
        ];
        for (text, named) in cases {
            let error = read(text).unwrap_err().to_string();
            assert!(error.contains(named), "{text}: {error}");
        }
    }
}
