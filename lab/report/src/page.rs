//! A document as one HTML page that stands alone.

use std::fmt::Write as _;

use crate::chart::canvas::mark_alone;
use crate::content::Light;
use crate::document::{Cell, Document, Figure, Part, Section, Table, Verdict};
use crate::escape::Html;

const STYLE: &str = include_str!("style.css");
const SCRIPT: &str = include_str!("script.js");

/// Reasons beyond this many are folded.
const REASONS_SHOWN: usize = 6;

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
    page.push_str("</header>\n<main>\n");
    for (number, section) in document.sections.iter().enumerate() {
        write_section(&mut page, section, number);
        if number == 0 && document.sections.len() >= CONTENTS_MIN {
            write_contents(&mut page, &document.sections);
        }
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
    page.push_str("<nav aria-label=\"Contents\"><ul>");
    for (number, section) in sections.iter().enumerate().skip(1) {
        let _ = write!(page, "<li><a href=\"#s{number}\">{}</a></li>", Html(&section.title));
    }
    page.push_str("</ul></nav>\n");
}

fn write_section(page: &mut String, section: &Section, number: usize) {
    let _ = write!(page, "<section id=\"s{number}\">\n<h2>{}</h2>\n", Html(&section.title));
    for part in &section.parts {
        match part {
            Part::Heading(text) => {
                let _ = writeln!(page, "<h3>{}</h3>", Html(text));
            }
            Part::Text(text) => {
                let _ = writeln!(page, "<p>{}</p>", Html(text));
            }
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
            Part::Folded(title, table) => write_folded(page, title, table),
        }
    }
    page.push_str("</section>\n");
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
        write_folded(page, "The same as a table", table);
    }
    page.push_str("</figure>\n");
}

fn write_folded(page: &mut String, title: &str, table: &Table) {
    let _ = writeln!(page, "<details><summary>{}</summary>", Html(title));
    write_table(page, table);
    page.push_str("</details>\n");
}

fn write_table(page: &mut String, table: &Table) {
    page.push_str("<div class=\"table\" tabindex=\"0\"><table>\n<thead><tr>");
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
            write_cell(page, cell, column.is_number);
        }
        page.push_str("</tr>\n");
    }
    page.push_str("</tbody></table></div>\n");
}

fn write_cell(page: &mut String, cell: &Cell, is_number: bool) {
    let class = match (is_number, cell.series.is_some()) {
        (true, _) => " class=\"number\"",
        (false, true) => " class=\"name\"",
        (false, false) => "",
    };
    let _ = write!(page, "<td{class}>");
    if let Some(series) = cell.series {
        page.push_str(&mark_alone(series));
    }
    let text = Html(&cell.text);
    let _ = if cell.is_code && !cell.text.is_empty() {
        write!(page, "<code>{text}</code>")
    } else {
        write!(page, "{text}")
    };
    for label in &cell.labels {
        let _ = write!(page, "<span class=\"label {}\">{label}</span>", label.to_lowercase());
    }
    page.push_str("</td>");
}
