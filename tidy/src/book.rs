//! A preprocessor of mdBook: links that lead out of the guide's folder lead to the repository.
//!
//! On a forge such links are right as they are, and `cargo tidy links` follows them. In the book, which is a folder by
//! itself, they would lead nowhere.

use crate::guide;
use serde_json::Value;
use std::io::{self, Read as _, Write as _};

/// Where the repository is.
const REPOSITORY: &str = "https://github.com/peregrine-http/peregrine/blob/main/";

/// Reads mdBook's context and book, and writes the book.
pub(crate) fn run(arguments: &[String]) -> io::Result<()> {
    // It asks first whether the renderer is supported: all are.
    if arguments.first().is_some_and(|word| word == "supports") {
        return Ok(());
    }
    let mut text = String::new();
    io::stdin().read_to_string(&mut text)?;
    let wrong = |what: &str| io::Error::new(io::ErrorKind::InvalidData, what.to_owned());
    let mut input: Value = serde_json::from_str(&text)?;
    let book = input.get_mut(1).ok_or_else(|| wrong("mdBook sends a context and a book"))?;
    each_chapter(book);
    io::stdout().write_all(serde_json::to_string(book)?.as_bytes())
}

/// Goes through what is nested, whatever its lists are called.
fn each_chapter(value: &mut Value) {
    match value {
        Value::Array(items) => items.iter_mut().for_each(each_chapter),
        Value::Object(members) => {
            if let Some(Value::String(content)) = members.get_mut("content") {
                *content = led_out(content);
            }
            members.values_mut().for_each(each_chapter);
        }
        _ => {}
    }
}

/// The page with such links changed.
fn led_out(page: &str) -> String {
    let mut page = page.to_owned();
    let targets: Vec<String> = guide::links(&page).into_iter().map(str::to_owned).collect();
    for target in targets.iter().filter(|target| target.starts_with("../")) {
        let path = match target.strip_prefix("../../") {
            Some(path) => path.to_owned(),
            None => format!("docs/{}", &target[3..]),
        };
        page = page.replace(&format!("]({target})"), &format!("]({REPOSITORY}{path})"));
    }
    page
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn links_out_of_the_folder_lead_to_the_repository() {
        let mut book = serde_json::json!({ "items": [{ "Chapter": {
            "content": "[a](b.md) [c](../d.md#e) [f](../../g/h.rs)", "sub_items": [],
        } }] });
        each_chapter(&mut book);
        let expected = format!("[a](b.md) [c]({REPOSITORY}docs/d.md#e) [f]({REPOSITORY}g/h.rs)");
        assert_eq!(book["items"][0]["Chapter"]["content"], expected);
    }
}
