//! A document as Markdown, with a table in the place of each picture.

use std::fmt::Write as _;

use crate::content::Light;
use crate::document::{Card, Cell, Document, Part, Section, Table};
use crate::escape::Markdown;

pub(crate) fn write(document: &Document) -> String {
    let mut text = String::new();
    // Writing to a string does not fail.
    let _ = writeln!(text, "# {}\n", Markdown(&document.title));
    let _ = writeln!(text, "{}\n", Markdown(&document.subtitle.join(" · ")));
    let _ = writeln!(text, "**{}: {}**\n", colour(document.light), document.light_words);
    for (light, reason) in &document.reasons {
        let _ = writeln!(text, "- {}: {}", colour(*light), Markdown(reason));
    }
    for section in &document.sections {
        write_section(&mut text, section);
    }
    text
}

fn colour(light: Light) -> &'static str {
    match light {
        Light::Green => "green",
        Light::Amber => "amber",
        Light::Red => "red",
    }
}

fn write_section(text: &mut String, section: &Section) {
    let _ = writeln!(text, "\n## {}", Markdown(&section.title));
    write_parts(text, &section.parts);
}

fn write_parts(text: &mut String, parts: &[Part]) {
    for part in parts {
        text.push('\n');
        let _ = match part {
            Part::Heading(heading) => writeln!(text, "### {}", Markdown(heading)),
            Part::Text(words) | Part::Note(words) => writeln!(text, "{}", Markdown(words)),
            Part::Cards(cards) => {
                cards.iter().for_each(|card| write_card(text, card));
                Ok(())
            }
            Part::Verdicts(verdicts) => {
                for verdict in verdicts {
                    let (name, sentence) = (Markdown(&verdict.name), Markdown(&verdict.sentence));
                    let _ = writeln!(text, "- **{name}** {sentence}");
                }
                Ok(())
            }
            Part::List(items) => {
                items.iter().try_for_each(|item| writeln!(text, "- {}", Markdown(item)))
            }
            Part::Table(table) => {
                write_table(text, table);
                Ok(())
            }
            Part::Figure(figure) => {
                let _ = writeln!(text, "### {}\n", Markdown(&figure.title));
                let _ = writeln!(text, "{}", Markdown(&figure.caption));
                if let Some(table) = &figure.table {
                    text.push('\n');
                    write_table(text, table);
                }
                Ok(())
            }
            Part::Folded(title, parts) => {
                let _ = writeln!(text, "### {}", Markdown(title));
                write_parts(text, parts);
                Ok(())
            }
        };
    }
}

fn write_card(text: &mut String, card: &Card) {
    let _ = writeln!(text, "- **{}**: {}", card.word, Markdown(&card.title));
    for (name, value) in &card.facts {
        let _ = writeln!(text, "  - {name}: {}", Markdown(value));
    }
    if !card.text.is_empty() {
        let _ = writeln!(text, "  - {}", Markdown(&card.text));
    }
}

fn write_table(text: &mut String, table: &Table) {
    text.push('|');
    for column in &table.columns {
        let unit =
            if column.unit.is_empty() { String::new() } else { format!(", {}", column.unit) };
        let _ = write!(text, " {}{} |", Markdown(&column.title), Markdown(&unit));
    }
    text.push_str("\n|");
    for column in &table.columns {
        text.push_str(if column.is_number { "--:|" } else { "---|" });
    }
    text.push('\n');
    for row in &table.rows {
        text.push('|');
        for cell in row {
            let _ = write!(text, " {} |", words(cell));
        }
        text.push('\n');
    }
}

fn words(cell: &Cell) -> String {
    let mut words = Markdown(&cell.text).to_string();
    if cell.is_strong {
        words = format!("**{words}**");
    }
    for line in &cell.more {
        let _ = write!(words, " {}", Markdown(line));
    }
    for label in &cell.labels {
        if !words.is_empty() {
            words.push(' ');
        }
        let _ = write!(words, "**{label}**");
    }
    words
}
