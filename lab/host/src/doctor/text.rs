//! A diagnosis as text for a terminal.

use std::fmt;

use super::{Diagnosis, Level};

/// The columns of a line of prose.
const WIDTH: usize = 92;

impl fmt::Display for Diagnosis {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(formatter, "{}: {}\n", self.badge.to_string().to_uppercase(), self.summary)?;
        let width = self.findings.iter().map(|finding| finding.check.len()).max().unwrap_or(0);
        for finding in &self.findings {
            let level = match finding.level {
                Level::Ok => "ok",
                Level::Note => "note",
                Level::Warning => "WARN",
                Level::Unfit => "UNFIT",
            };
            writeln!(formatter, "{level:>5}  {:width$}  {}", finding.check, finding.read)?;
            if finding.level == Level::Ok {
                continue;
            }
            for line in wrap(&finding.why) {
                writeln!(formatter, "       {line}")?;
            }
            if let Some(mend) = &finding.mend {
                for line in wrap(&format!("To mend it: {mend}")) {
                    writeln!(formatter, "       {line}")?;
                }
            }
        }
        writeln!(formatter, "\nNothing was changed.")
    }
}

/// Breaks a text at spaces.
fn wrap(text: &str) -> Vec<String> {
    let mut lines = vec![String::new()];
    for word in text.split_whitespace() {
        let line = lines.last_mut().expect("there is always a line");
        if !line.is_empty() && line.len() + 1 + word.len() > WIDTH {
            lines.push(word.to_owned());
            continue;
        }
        if !line.is_empty() {
            line.push(' ');
        }
        line.push_str(word);
    }
    lines
}
