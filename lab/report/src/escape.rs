//! Text from run files, made harmless for the form that it is written into.

use std::fmt::{self, Write as _};

/// Text for HTML and SVG, in content and in quoted attributes.
pub(crate) struct Html<'a>(pub(crate) &'a str);

impl fmt::Display for Html<'_> {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        for letter in self.0.chars() {
            match letter {
                '&' => formatter.write_str("&amp;")?,
                '<' => formatter.write_str("&lt;")?,
                '>' => formatter.write_str("&gt;")?,
                '"' => formatter.write_str("&quot;")?,
                '\'' => formatter.write_str("&#39;")?,
                // XML has no way to write other control characters, not even by number.
                '\n' | '\t' => formatter.write_char(' ')?,
                letter if letter.is_control() => formatter.write_char('\u{fffd}')?,
                letter => formatter.write_char(letter)?,
            }
        }
        Ok(())
    }
}

/// Text for a line or a table cell of Markdown. HTML inside Markdown is text, too.
pub(crate) struct Markdown<'a>(pub(crate) &'a str);

impl fmt::Display for Markdown<'_> {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        for letter in self.0.chars() {
            match letter {
                '\\' | '|' | '`' | '*' | '_' | '[' | ']' | '#' | '~' => {
                    formatter.write_char('\\')?;
                    formatter.write_char(letter)?;
                }
                '&' => formatter.write_str("&amp;")?,
                '<' => formatter.write_str("&lt;")?,
                '>' => formatter.write_str("&gt;")?,
                letter if letter.is_control() => formatter.write_char(' ')?,
                letter => formatter.write_char(letter)?,
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn no_markup_survives() {
        let nasty = "<script a='1' b=\"2\">&\u{1}";
        assert_eq!(
            Html(nasty).to_string(),
            "&lt;script a=&#39;1&#39; b=&quot;2&quot;&gt;&amp;\u{fffd}"
        );
        assert_eq!(Markdown("a|b `c`\n<i>").to_string(), "a\\|b \\`c\\` &lt;i&gt;");
    }
}
