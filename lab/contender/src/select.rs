//! Contenders by name, and the list of all.

use std::fmt;

use crate::recipe::Recipe;
use crate::state::State;

/// The word that stands for every contender.
pub const ALL: &str = "all";

/// A name that no contender has.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SelectError {
    /// The name.
    pub wanted: String,
    /// Names that are spelt much like it, the nearest first.
    pub near: Vec<String>,
    /// All names there are.
    pub all: Vec<String>,
}

impl fmt::Display for SelectError {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(formatter, "there is no contender {:?}; ", self.wanted)?;
        match (self.near.as_slice(), self.all.as_slice()) {
            (_, []) => formatter.write_str("there are no contenders at all"),
            ([], all) => write!(formatter, "there are {}", all.join(", ")),
            (near, _) => write!(formatter, "did you mean {}?", near.join(" or ")),
        }
    }
}

impl std::error::Error for SelectError {}

/// The recipes with the `wanted` names, in that order and each once. `all`, or no name, is every
/// recipe but variants.
///
/// # Errors
///
/// A [`SelectError`] for the first unknown name, with the names that are near to it.
pub fn select<'all>(
    all: &'all [Recipe],
    wanted: &[String],
) -> Result<Vec<&'all Recipe>, SelectError> {
    let every = || all.iter().filter(|recipe| !recipe.is_variant);
    if wanted.is_empty() {
        return Ok(every().collect());
    }
    let mut selected: Vec<&Recipe> = Vec::new();
    let add = |selected: &mut Vec<&'all Recipe>, recipe: &'all Recipe| {
        if !selected.iter().any(|other| other.name == recipe.name) {
            selected.push(recipe);
        }
    };
    for name in wanted {
        if let Some(recipe) = all.iter().find(|recipe| recipe.name == *name) {
            add(&mut selected, recipe);
        } else if name == ALL {
            every().for_each(|recipe| add(&mut selected, recipe));
        } else {
            let names = || all.iter().map(|recipe| recipe.name.as_str());
            return Err(SelectError {
                wanted: name.clone(),
                near: near(name, names()),
                all: names().map(String::from).collect(),
            });
        }
    }
    Ok(selected)
}

/// A table for people: name, class, version, state with reason, and whether it serves HTTPS.
#[must_use]
pub fn table(rows: &[(&Recipe, State)]) -> String {
    let heading = ["name", "class", "version", "https", "state"].map(String::from);
    let row = |(recipe, state): &(&Recipe, State)| {
        let https = if recipe.is_tls_able { "yes" } else { "no" };
        let version = match state {
            State::Ready { identity } => identity.version.clone(),
            _ => recipe.lock_version().unwrap_or_default(),
        };
        let version = if version.is_empty() { "-".to_owned() } else { version };
        let class = recipe.class.word().to_owned();
        [recipe.name.clone(), class, version, https.to_owned(), state.to_string()]
    };
    let lines: Vec<[String; 5]> = std::iter::once(heading).chain(rows.iter().map(row)).collect();
    let width = |column: usize| {
        lines.iter().map(|line| line[column].chars().count()).max().unwrap_or_default()
    };
    let widths = [width(0), width(1), width(2), width(3)];
    let mut text = String::new();
    for line in &lines {
        for (cell, width) in line.iter().zip(widths) {
            text.push_str(&format!("{cell:width$}  "));
        }
        text.push_str(&line[4]);
        text.push('\n');
    }
    text
}

/// The names that differ from `name` by few letters or hold it or are held by it, nearest first.
pub(crate) fn near<'name>(name: &str, names: impl IntoIterator<Item = &'name str>) -> Vec<String> {
    let name = name.to_lowercase();
    let allowance = name.chars().count().div_ceil(3);
    let mut found: Vec<(usize, &str)> = names
        .into_iter()
        .filter_map(|other| {
            let distance = distance(&name, &other.to_lowercase());
            let is_part = name.len() >= 3 && other.contains(&name);
            let is_whole = other.len() >= 3 && name.contains(other);
            (distance <= allowance || is_part || is_whole).then_some((distance, other))
        })
        .collect();
    found.sort_unstable();
    found.truncate(3);
    found.into_iter().map(|(_, name)| name.to_owned()).collect()
}

/// How many letters must be put in, taken out or changed to make one text of the other.
fn distance(one: &str, other: &str) -> usize {
    let other: Vec<char> = other.chars().collect();
    let mut row: Vec<usize> = (0..=other.len()).collect();
    for (line, letter) in one.chars().enumerate() {
        let mut diagonal = row[0];
        row[0] = line + 1;
        for column in 0..other.len() {
            let changed = diagonal + usize::from(letter != other[column]);
            diagonal = row[column + 1];
            row[column + 1] = changed.min(diagonal + 1).min(row[column] + 1);
        }
    }
    row[other.len()]
}
