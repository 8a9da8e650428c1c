//! A document as one HTML page that stands alone.

use std::fmt::Write as _;

use crate::chart::canvas::mark_alone;
use crate::content::Light;
use crate::document::{Card, Cell, Column, Document, Figure, Part, Section, Table, Verdict};
use crate::escape::Html;

const STYLE: &str = include_str!("style.css");
const SCRIPT: &str = include_str!("script.js");

/// Reasons beyond this many are folded.
const REASONS_SHOWN: usize = 4;

/// From this many sections on there is a list of them.
const CONTENTS_MIN: usize = 4;

pub(crate) fn write(document: &Document) -> String {
    let title = Html(&document.title);
    let mut page = String::new();
    // Writing to a string does not fail.
    let _ = write!(
        page,
        "<!doctype html>\n<html lang=\"en\">\n<head>\n<meta charset=\"utf-8\">\n\
         <meta name=\"viewport\" content=\"width=device-width, initial-scale=1\">\n\
         <meta name=\"color-scheme\" content=\"light dark\">\n\
         <title>{title}</title>\n<style>\n{STYLE}</style>\n</head>\n<body>\n<header>\n\
         <h1>{title}</h1>\n<p class=\"facts\">"
    );
    for fact in &document.subtitle {
        let _ = write!(page, "<span>{}</span>", Html(fact));
    }
    page.push_str("</p>\n");
    write_standing(&mut page, document);
    if document.sections.len() >= CONTENTS_MIN {
        write_contents(&mut page, &document.sections);
    }
    page.push_str("</header>\n<main>\n");
    for (number, section) in document.sections.iter().enumerate() {
        write_section(&mut page, section, number);
    }
    let _ = write!(page, "</main>\n<script>\n{SCRIPT}</script>\n</body>\n</html>\n");
    page
}

fn light_class(light: Light) -> &'static str {
    match light {
        Light::Green => "green",
        Light::Amber => "amber",
        Light::Red => "red",
    }
}

fn write_standing(page: &mut String, document: &Document) {
    let class = light_class(document.light);
    let _ = writeln!(
        page,
        "<div class=\"standing {class}\"><p class=\"badge\">{}</p>",
        Html(document.light_words)
    );
    let (shown, folded) = document.reasons.split_at(document.reasons.len().min(REASONS_SHOWN));
    write_reasons(page, shown);
    if !folded.is_empty() {
        let _ = write!(page, "<details><summary>{} more reasons</summary>", folded.len());
        write_reasons(page, folded);
        page.push_str("</details>");
    }
    page.push_str("</div>\n");
}

fn write_reasons(page: &mut String, reasons: &[(Light, String)]) {
    page.push_str("<ul>");
    for (light, reason) in reasons {
        let _ = write!(page, "<li class=\"{}\">{}</li>", light_class(*light), Html(reason));
    }
    page.push_str("</ul>\n");
}

fn write_contents(page: &mut String, sections: &[Section]) {
    page.push_str("<nav aria-label=\"Contents\"><details><summary>Contents</summary><ul>");
    for (number, section) in sections.iter().enumerate() {
        let _ = write!(page, "<li><a href=\"#s{number}\">{}</a></li>", Html(&section.title));
    }
    page.push_str("</ul></details></nav>\n");
}

fn write_section(page: &mut String, section: &Section, number: usize) {
    let _ = write!(page, "<section id=\"s{number}\">\n<h2>{}</h2>\n", Html(&section.title));
    write_parts(page, &section.parts);
    page.push_str("</section>\n");
}

fn write_parts(page: &mut String, parts: &[Part]) {
    for part in parts {
        match part {
            Part::Heading(text) => {
                let _ = writeln!(page, "<h3>{}</h3>", Html(text));
            }
            Part::Text(text) => {
                let _ = writeln!(page, "<p>{}</p>", Html(text));
            }
            Part::Note(text) => {
                let _ = writeln!(page, "<p class=\"note\">{}</p>", Html(text));
            }
            Part::Cards(cards) => cards.iter().for_each(|card| write_card(page, card)),
            Part::Verdicts(verdicts) => write_verdicts(page, verdicts),
            Part::List(items) => {
                page.push_str("<ul class=\"plain\">\n");
                for item in items {
                    let _ = writeln!(page, "<li>{}</li>", Html(item));
                }
                page.push_str("</ul>\n");
            }
            Part::Table(table) => write_table(page, table),
            Part::Figure(figure) => write_figure(page, figure),
            Part::Folded(title, parts) => {
                // Paper has no clicks: words are printed all the same, long tables are not.
                let is_words = !parts.iter().any(|part| matches!(part, Part::Table(_)));
                let class = if is_words { " class=\"words\"" } else { "" };
                let _ = writeln!(page, "<details{class}><summary>{}</summary>", Html(title));
                write_parts(page, parts);
                page.push_str("</details>\n");
            }
        }
    }
}

fn write_card(page: &mut String, card: &Card) {
    let Card { word, title, facts, text } = card;
    let class = word.replace(' ', "-");
    let _ = write!(
        page,
        "<article class=\"card {class}\"><h4><em>{word}</em> {}</h4>\n<dl>",
        Html(title)
    );
    for (name, value) in facts {
        let _ = write!(page, "<div><dt>{name}</dt><dd>{}</dd></div>", Html(value));
    }
    page.push_str("</dl>\n");
    if !text.is_empty() {
        let _ = write!(page, "<p>{}</p>", Html(text));
    }
    page.push_str("</article>\n");
}

fn write_verdicts(page: &mut String, verdicts: &[Verdict]) {
    page.push_str("<ul class=\"verdicts\">\n");
    for Verdict { word, name, sentence } in verdicts {
        let class = word.replace(' ', "-");
        let name = Html(name);
        let _ = write!(page, "<li data-name=\"{name}\" class=\"{class}\"><span><b>{name}</b> ");
        // The word stands at the end of the sentence; what follows it is a remark.
        let _ = match sentence.split_once(&format!(": {word}")) {
            Some((before, after)) => {
                write!(page, "{}: <em>{word}</em>{}", Html(before), Html(after))
            }
            None => write!(page, "{}", Html(sentence)),
        };
        page.push_str("</span></li>\n");
    }
    page.push_str("</ul>\n");
}

fn write_figure(page: &mut String, figure: &Figure) {
    let Figure { title, caption, wide, narrow, legend, table } = figure;
    let _ = write!(
        page,
        "<figure>\n<figcaption><b>{}</b> {}</figcaption>\n<div class=\"wide\">{wide}</div>\n\
         <div class=\"narrow\">{narrow}",
        Html(title),
        Html(caption)
    );
    if !legend.is_empty() {
        page.push_str("<ul class=\"legend\">");
        for (name, series) in legend {
            let name = Html(name);
            let mark = mark_alone(*series);
            let _ = write!(page, "<li data-name=\"{name}\">{mark}{name}</li>");
        }
        page.push_str("</ul>");
    }
    page.push_str("</div>\n");
    if let Some(table) = table {
        page.push_str("<details><summary>The same as a table</summary>\n");
        write_table(page, table);
        page.push_str("</details>\n");
    }
    page.push_str("</figure>\n");
}

fn write_table(page: &mut String, table: &Table) {
    // Sentences side by side are not readable on a phone, where they stand below each other.
    let is_prose = table.columns.len() > 2 && table.columns.iter().all(|one| !one.is_number);
    let class = if is_prose { " class=\"prose\"" } else { "" };
    let _ = write!(page, "<div class=\"table\" tabindex=\"0\"><table{class}>\n<thead><tr>");
    for column in &table.columns {
        let class = if column.is_number { " class=\"number\"" } else { "" };
        let _ = write!(page, "<th scope=\"col\"{class}>{}", Html(&column.title));
        if !column.unit.is_empty() {
            let _ = write!(page, "<small>{}</small>", Html(column.unit));
        }
        page.push_str("</th>");
    }
    page.push_str("</tr></thead>\n<tbody>\n");
    for row in &table.rows {
        page.push_str("<tr>");
        for (cell, column) in row.iter().zip(&table.columns) {
            write_cell(page, cell, column, is_prose);
        }
        page.push_str("</tr>\n");
    }
    page.push_str("</tbody></table></div>\n");
}

fn write_cell(page: &mut String, cell: &Cell, column: &Column, is_prose: bool) {
    let class = match (column.is_number, cell.series.is_some()) {
        (true, _) => " class=\"number\"",
        (false, true) => " class=\"name\"",
        (false, false) => "",
    };
    let _ = write!(page, "<td{class}");
    if is_prose {
        let _ = write!(page, " data-label=\"{}\"", Html(&column.title));
    }
    page.push('>');
    if let Some(series) = cell.series {
        page.push_str(&mark_alone(series));
    }
    let text = Html(&cell.text);
    let _ = match (cell.is_code && !cell.text.is_empty(), cell.is_strong) {
        (true, _) => write!(page, "<code>{text}</code>"),
        (false, true) => write!(page, "<b>{text}</b>"),
        (false, false) => write!(page, "{text}"),
    };
    for label in &cell.labels {
        let _ = write!(page, "<span class=\"label {}\">{label}</span>", label.to_lowercase());
    }
    if !cell.more.is_empty() {
        let _ = write!(page, "<details><summary>{} more</summary><ul>", cell.more.len());
        for line in &cell.more {
            let _ = write!(page, "<li>{}</li>", Html(line));
        }
        page.push_str("</ul></details>");
    }
    page.push_str("</td>");
}
