//! A report as sections of text, lists, tables and figures. HTML and Markdown are written from
//! the same document, so they say the same.

use crate::content::{Light, Series};

pub(crate) struct Document {
    pub(crate) title: String,
    pub(crate) subtitle: Vec<String>,
    pub(crate) light: Light,
    pub(crate) light_words: &'static str,
    pub(crate) reasons: Vec<(Light, String)>,
    pub(crate) sections: Vec<Section>,
}

pub(crate) struct Section {
    pub(crate) title: String,
    pub(crate) parts: Vec<Part>,
}

pub(crate) enum Part {
    /// A heading below the section's.
    Heading(String),
    Text(String),
    /// A remark in small letters.
    Note(String),
    Cards(Vec<Card>),
    /// Verdicts: a word, the name it is about, and the sentence.
    Verdicts(Vec<Verdict>),
    List(Vec<String>),
    Table(Table),
    Figure(Figure),
    /// What HTML shows on demand, below a title.
    Folded(String, Vec<Part>),
}

/// One matter with a word on it, a few facts side by side, and the reasons.
pub(crate) struct Card {
    pub(crate) word: &'static str,
    pub(crate) title: String,
    pub(crate) facts: Vec<(&'static str, String)>,
    pub(crate) text: String,
}

pub(crate) struct Verdict {
    pub(crate) word: &'static str,
    pub(crate) name: String,
    pub(crate) sentence: String,
}

/// A chart for wide and for narrow screens, and the same figures as a table.
pub(crate) struct Figure {
    pub(crate) title: String,
    pub(crate) caption: String,
    pub(crate) wide: String,
    pub(crate) narrow: String,
    /// Who is drawn, for charts without room for names; empty where the names are in the chart.
    pub(crate) legend: Vec<(String, Series)>,
    pub(crate) table: Option<Table>,
}

#[derive(Default)]
pub(crate) struct Table {
    pub(crate) columns: Vec<Column>,
    pub(crate) rows: Vec<Vec<Cell>>,
}

pub(crate) struct Column {
    pub(crate) title: String,
    /// The unit below the title; empty for text and for pure numbers.
    pub(crate) unit: &'static str,
    pub(crate) is_number: bool,
}

#[derive(Default)]
pub(crate) struct Cell {
    pub(crate) text: String,
    /// The contender's mark before the text.
    pub(crate) series: Option<Series>,
    /// Small labels behind the text, such as CLIENT-BOUND.
    pub(crate) labels: Vec<&'static str>,
    /// A code font for commands and hashes.
    pub(crate) is_code: bool,
    pub(crate) is_strong: bool,
    /// Further lines, which HTML shows on demand.
    pub(crate) more: Vec<String>,
}

impl Table {
    /// A table with these columns: the title, the unit, and whether numbers stand in it.
    pub(crate) fn new(columns: &[(&str, &'static str, bool)]) -> Table {
        let columns = columns.iter().map(|(title, unit, is_number)| Column {
            title: (*title).to_owned(),
            unit,
            is_number: *is_number,
        });
        Table { columns: columns.collect(), rows: Vec::new() }
    }

    pub(crate) fn push(&mut self, cells: impl IntoIterator<Item = Cell>) {
        self.rows.push(cells.into_iter().collect());
    }
}

impl Cell {
    pub(crate) fn code(text: impl Into<String>) -> Cell {
        Cell { text: text.into(), is_code: true, ..Cell::default() }
    }

    pub(crate) fn name(text: &str, series: Series) -> Cell {
        Cell { text: text.to_owned(), series: Some(series), ..Cell::default() }
    }
}

impl Cell {
    /// The first line, with the others on demand.
    pub(crate) fn lines(lines: &[String]) -> Cell {
        let (first, more) = lines
            .split_first()
            .map_or((String::new(), Vec::new()), |(one, rest)| (one.clone(), rest.to_vec()));
        Cell { text: first, more, ..Cell::default() }
    }
}

impl<T: Into<String>> From<T> for Cell {
    fn from(text: T) -> Cell {
        Cell { text: text.into(), ..Cell::default() }
    }
}
