//! Directory listings as HTML pages.

use percent_encoding::{AsciiSet, NON_ALPHANUMERIC, utf8_percent_encode};
use std::fmt::Write;

/// The maximum number of entries on a page.
pub(crate) const LISTING_MAX: usize = 1000;

/// A file or directory in a listing.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct DirEntry {
    pub(crate) name: String,
    pub(crate) is_dir: bool,
}

/// RFC 3986, section 2.3: these characters never need encoding.
const NAME: &AsciiSet = &NON_ALPHANUMERIC.remove(b'-').remove(b'.').remove(b'_').remove(b'~');

/// Renders the page. `path` is decoded, and only displayed.
pub(crate) fn render_listing(path: &str, entries: &[DirEntry], has_more: bool) -> String {
    let mut title = String::from("/");
    escape(path, &mut title);
    let mut page = format!(
        "<!doctype html><html lang=\"en\"><meta charset=\"utf-8\">\
         <meta name=\"viewport\" content=\"width=device-width\"><title>{title}</title><h1>{title}</h1><ul>"
    );
    if !path.is_empty() {
        page.push_str("<li><a href=\"../\">../</a>");
    }
    for DirEntry { name, is_dir } in entries {
        let slash = if *is_dir { "/" } else { "" };
        // Writing to a string never fails. `./` prevents a name with a colon from being read as a
        // scheme.
        let _ = write!(page, "<li><a href=\"./{}{slash}\">", utf8_percent_encode(name, NAME));
        escape(name, &mut page);
        page.push_str(slash);
        page.push_str("</a>");
    }
    if has_more {
        page.push_str("<li>and more");
    }
    page.push_str("</ul></html>\n");
    page
}

fn escape(text: &str, page: &mut String) {
    for c in text.chars() {
        match c {
            '&' => page.push_str("&amp;"),
            '<' => page.push_str("&lt;"),
            '>' => page.push_str("&gt;"),
            '"' => page.push_str("&quot;"),
            '\'' => page.push_str("&#39;"),
            _ => page.push(c),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_escaped() {
        let entry = |name: &str, is_dir| DirEntry { name: name.to_owned(), is_dir };
        let entries =
            [entry("a b", true), entry("<script>\"&'", false), entry("javascript:x", false)];
        let page = render_listing("x/<y>", &entries, true);
        assert!(page.contains("<h1>/x/&lt;y&gt;</h1>"), "{page}");
        assert!(page.contains("<a href=\"./a%20b/\">a b/</a>"), "{page}");
        assert!(
            page.contains("<a href=\"./%3Cscript%3E%22%26%27\">&lt;script&gt;&quot;&amp;&#39;</a>")
        );
        assert!(page.contains("href=\"./javascript%3Ax\"") && page.contains("and more"));
        assert!(!page.contains("<script"));
    }
}
