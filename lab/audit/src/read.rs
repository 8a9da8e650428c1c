//! Reads a claim file and refuses what cannot be audited, with the place and the remedy.

use std::collections::HashSet;
use std::fmt;
use std::ops::Range;
use std::path::Path;

use crate::claim::{Claim, Document, Form};
use crate::statement::{Statement, is_of_operations};

/// The version of the file format that this program reads.
pub const SCHEMA: u32 = 1;

/// The largest claim file that is read, in bytes; a page is a few kilobytes.
pub const FILE_BYTES_MAX: u64 = 4 * 1024 * 1024;

/// A claim file or an option that cannot be used: its author is asked to mend it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct InputError {
    /// The file's name, or `command line`.
    pub file: String,
    /// The line in it, counted from 1, if one is to blame.
    pub line: Option<usize>,
    /// The key or option, such as `rows[3].mean`.
    pub key: String,
    /// What is wrong.
    pub problem: String,
    /// What to do about it.
    pub fix: String,
}

impl fmt::Display for InputError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}", self.file)?;
        if let Some(line) = self.line {
            write!(f, ":{line}")?;
        }
        write!(f, ": {}: {}. Fix: {}.", self.key, self.problem, self.fix)
    }
}

impl std::error::Error for InputError {}

/// Reads and checks a claim file.
///
/// # Errors
///
/// If the file cannot be read, is larger than [`FILE_BYTES_MAX`], or is refused by [`document`].
pub fn file(path: &Path) -> Result<Document, InputError> {
    let name = path.display().to_string();
    let whole = |problem: String, fix: &str| InputError {
        file: name.clone(),
        line: None,
        key: "the file".to_owned(),
        problem,
        fix: fix.to_owned(),
    };
    let unreadable = |error: std::io::Error| {
        whole(
            format!("cannot be read: {error}"),
            "give the path of a claim file, such as lab/claims/tako-hello.toml",
        )
    };
    let bytes = std::fs::metadata(path).map_err(unreadable)?.len();
    if bytes > FILE_BYTES_MAX {
        let problem = format!("has {bytes} bytes, more than the {FILE_BYTES_MAX} that are read");
        return Err(whole(problem, "give a claim file, not the page or a recording"));
    }
    document(&name, &std::fs::read_to_string(path).map_err(unreadable)?)
}

/// Reads and checks the text of a claim file; `name` is used in errors.
///
/// # Errors
///
/// If the text is not TOML, has unknown or missing keys, a number that cannot be read, or a
/// reference to something the file does not define.
pub fn document(name: &str, text: &str) -> Result<Document, InputError> {
    let at = |span: Option<Range<usize>>, key: String, problem: &str| InputError {
        file: name.to_owned(),
        line: span.map(|span| line_of(text, span.start)),
        key,
        problem: problem.trim().trim_end_matches('.').replace('\n', "; "),
        fix: "see lab/claims/README.md for the keys and their form".to_owned(),
    };
    let deserializer = toml::Deserializer::parse(text)
        .map_err(|error| at(error.span(), "the file".to_owned(), error.message()))?;
    let document: Document = serde_path_to_error::deserialize(deserializer).map_err(|error| {
        let key = error.path().to_string();
        at(error.inner().span(), key, error.inner().message())
    })?;
    Validation { name, text }.document(&document)?;
    Ok(document)
}

/// The line of a byte offset, counted from 1.
fn line_of(text: &str, offset: usize) -> usize {
    1 + text.bytes().take(offset).filter(|byte| *byte == b'\n').count()
}

/// What the types cannot say: references, uniqueness, and forms.
struct Validation<'a> {
    name: &'a str,
    text: &'a str,
}

impl Validation<'_> {
    fn error(&self, span: Option<Range<usize>>, key: &str, problem: &str, fix: &str) -> InputError {
        InputError {
            file: self.name.to_owned(),
            line: span.map(|span| line_of(self.text, span.start)),
            key: key.to_owned(),
            problem: problem.to_owned(),
            fix: fix.to_owned(),
        }
    }

    fn document(&self, document: &Document) -> Result<(), InputError> {
        if document.schema != SCHEMA {
            let problem = format!("is {}, this program reads {SCHEMA}", document.schema);
            return Err(self.error(None, "schema", &problem, &format!("write schema = {SCHEMA}")));
        }
        if let Some(hash) = &document.source.sha256
            && (hash.len() != 64 || !hash.bytes().all(|byte| byte.is_ascii_hexdigit()))
        {
            let problem = format!("`{hash}` is not a SHA-256 in hexadecimal digits");
            return Err(self.error(
                None,
                "source.sha256",
                &problem,
                "write the 64 digits that sha256sum prints",
            ));
        }
        let scenarios =
            self.unique("scenarios", document.scenarios.iter().map(|s| s.id.as_str()))?;
        let contenders =
            self.unique("contenders", document.contenders.iter().map(|c| c.id.as_str()))?;
        self.rows(document, &scenarios, &contenders)?;
        self.microbenchmarks(document, &contenders)?;
        self.restated(document, &contenders)?;
        self.claims(document, &contenders)
    }

    fn unique<'d>(
        &self,
        list: &str,
        ids: impl Iterator<Item = &'d str>,
    ) -> Result<HashSet<&'d str>, InputError> {
        let mut seen = HashSet::new();
        for id in ids {
            if !seen.insert(id) {
                let problem = format!("the id `{id}` is used twice");
                return Err(self.error(None, list, &problem, "give each entry its own id"));
            }
        }
        Ok(seen)
    }

    fn known(
        &self,
        key: &str,
        value: &toml::Spanned<String>,
        known: &HashSet<&str>,
    ) -> Result<(), InputError> {
        if known.contains(value.get_ref().as_str()) {
            return Ok(());
        }
        let mut names: Vec<&str> = known.iter().copied().collect();
        names.sort_unstable();
        let problem = format!("`{}` is not defined in this file", value.get_ref());
        let fix = format!("use one of: {}, or define it", names.join(", "));
        Err(self.error(Some(value.span()), key, &problem, &fix))
    }

    fn rows(
        &self,
        document: &Document,
        scenarios: &HashSet<&str>,
        contenders: &HashSet<&str>,
    ) -> Result<(), InputError> {
        let mut seen = HashSet::new();
        for (index, row) in document.rows.iter().enumerate() {
            let key = format!("rows[{index}]");
            self.known(&format!("{key}.scenario"), &row.scenario, scenarios)?;
            self.known(&format!("{key}.contender"), &row.contender, contenders)?;
            if !seen.insert(row.name()) {
                let problem = format!("a second row for {}", row.name());
                let fix = "merge the two, or give one its own scenario";
                return Err(self.error(Some(row.scenario.span()), &key, &problem, fix));
            }
        }
        Ok(())
    }

    fn microbenchmarks(
        &self,
        document: &Document,
        contenders: &HashSet<&str>,
    ) -> Result<(), InputError> {
        for (index, table) in document.microbenchmarks.iter().enumerate() {
            let key = format!("microbenchmarks[{index}]");
            if let Some(column) =
                table.columns.iter().find(|column| !contenders.contains(column.as_str()))
            {
                let problem = format!("the column `{column}` is not a contender of this file");
                return Err(self.error(
                    None,
                    &format!("{key}.columns"),
                    &problem,
                    "add it to [[contenders]]",
                ));
            }
            for operation in &table.operations {
                let times = operation.times.get_ref().len();
                if times != table.columns.len() {
                    let problem = format!(
                        "`{}` has {times} times for {} columns",
                        operation.name,
                        table.columns.len()
                    );
                    let span = Some(operation.times.span());
                    return Err(self.error(
                        span,
                        &format!("{key}.operations"),
                        &problem,
                        "give one time per column",
                    ));
                }
            }
        }
        Ok(())
    }

    fn restated(&self, document: &Document, contenders: &HashSet<&str>) -> Result<(), InputError> {
        let scenarios = all_scenarios(document);
        for (index, restated) in document.restated.iter().enumerate() {
            let key = format!("restated[{index}]");
            self.known(&format!("{key}.scenario"), &restated.scenario, &scenarios)?;
            self.known(&format!("{key}.contender"), &restated.contender, contenders)?;
        }
        Ok(())
    }

    fn claims(&self, document: &Document, contenders: &HashSet<&str>) -> Result<(), InputError> {
        self.unique("claims", document.claims.iter().map(|claim| claim.id.get_ref().as_str()))?;
        let scenarios = all_scenarios(document);
        for (index, claim) in document.claims.iter().enumerate() {
            let key = format!("claims[{index}]");
            self.known(&format!("{key}.scenario"), &claim.scenario, &scenarios)?;
            self.known(&format!("{key}.subject"), &claim.subject, contenders)?;
            if let Some(object) = &claim.object {
                self.known(&format!("{key}.object"), object, contenders)?;
            }
            self.claim(document, claim, &key)?;
        }
        Ok(())
    }

    fn claim(&self, document: &Document, claim: &Claim, key: &str) -> Result<(), InputError> {
        let span = Some(claim.id.span());
        let is_about_one = matches!(claim.form, Form::Average | Form::Span | Form::Below);
        if is_about_one != claim.object.is_none() {
            let (problem, fix) = if is_about_one {
                ("this form is about one contender", "remove `object`")
            } else {
                ("this form compares two contenders", "add `object`")
            };
            return Err(self.error(span, &format!("{key}.object"), problem, fix));
        }
        if claim.quote.is_none() && claim.form != Form::Implied {
            let fix = "quote the sentence, or use form = \"implied\"";
            return Err(self.error(span, &format!("{key}.quote"), "is missing", fix));
        }
        let scenario = document.scenario(claim.scenario.get_ref());
        let connections = scenario.and_then(|scenario| scenario.connections);
        if claim.connections != connections {
            let problem =
                format!("is {:?}, but its scenario has {connections:?}", claim.connections);
            return Err(self.error(
                span,
                &format!("{key}.connections"),
                &problem,
                "write the scenario's number",
            ));
        }
        if is_of_operations(claim.measure) == scenario.is_some() {
            let fix = "use time_per_operation with a microbenchmark and no other measure";
            return Err(self.error(
                span,
                &format!("{key}.measure"),
                "does not fit the scenario",
                fix,
            ));
        }
        self.numbers(claim, key)
    }

    fn numbers(&self, claim: &Claim, key: &str) -> Result<(), InputError> {
        let place = claim.printed.as_ref().map_or_else(|| claim.id.span(), toml::Spanned::span);
        let refuse = |key: String, problem: String| {
            self.error(
                Some(place.clone()),
                &key,
                &problem,
                "correct the number, or choose another form",
            )
        };
        let statement =
            Statement::of(claim).map_err(|problem| refuse(format!("{key}.printed"), problem))?;
        statement.check_ratio(claim).map_err(|problem| refuse(format!("{key}.ratio"), problem))
    }
}

/// The ids of load scenarios and of microbenchmarks.
fn all_scenarios(document: &Document) -> HashSet<&str> {
    let tables = document.microbenchmarks.iter().map(|table| table.scenario.as_str());
    document.scenarios.iter().map(|scenario| scenario.id.as_str()).chain(tables).collect()
}
