//! Messages of the framework, against the page of the guide that explains them.
//!
//! Collected are: what the log is told at levels that ask for somebody, what the compiler says of traits, the texts of
//! error types, and the kinds of problems. Of each the longest piece that does not differ from one time to another has to
//! be on the page, or as much of it as nobody leaves out.

use crate::source::{place, rust_files};
use std::fs;
use std::path::Path;

/// The page.
const PAGE: &str = "docs/guide/errors.md";

/// How much of a piece has to be there. Who writes the page may leave out the rest of a long sentence.
const LETTERS_MAX: usize = 44;

/// A piece of this length is told from others.
const LETTERS_ENOUGH: usize = 14;

/// Where there is none, one of this length will do. Shorter ones are found everywhere.
const LETTERS_MIN: usize = 8;

/// What people who run servers, or write applications, read of these types and functions: each text in the braces
/// behind the words, the first one of each arm.
const SAID: [(&str, &str); 25] = [
    ("crates/acme/src/error.rs", "Display for AcmeError"),
    ("crates/auth/src/jwt/keys.rs", "Display for KeyError"),
    ("crates/cache/src/idempotency/store.rs", "Display for StoreError"),
    ("crates/config/src/error.rs", "Display for ConfigError"),
    ("crates/mount/src/remote.rs", "Display for SpawnError"),
    ("crates/openapi/src/document.rs", "Display for OpenApiError"),
    ("crates/peregrine/src/error.rs", "Display for Error"),
    ("crates/peregrine/src/otlp.rs", "Display for OtlpError"),
    ("crates/peregrine/src/restart/upgrade.rs", "Display for UpgradeError"),
    ("crates/peregrine/src/stopped.rs", "Display for Stopped"),
    ("crates/proxy/src/upstreams.rs", "Display for UpstreamError"),
    ("crates/router/src/error.rs", "Display for PatternFault"),
    ("crates/server/src/overload/limits.rs", "fn fault"),
    ("crates/server/src/proxied.rs", "fn fault"),
    ("crates/tls/src/error.rs", "Display for TlsError"),
    ("crates/tls/src/error.rs", "Display for Warning"),
    ("crates/web/src/body/error.rs", "Display for BodyError"),
    ("crates/web/src/fault.rs", "Display for Fault"),
    ("crates/web/src/interim.rs", "Display for InterimError"),
    ("crates/web/src/sse/channel.rs", "Display for SendError"),
    ("crates/web/src/sse/event.rs", "Display for InvalidEvent"),
    ("crates/websocket/src/error.rs", "Display for Error"),
    ("crates/websocket/src/error.rs", "Display for SendError"),
    ("crates/websocket/src/error.rs", "Display for JsonError"),
    ("drivers/uring/src/probe.rs", "Display for Refusal"),
];

/// What is called with the kind of a problem.
const WITH_KIND: [&str; 7] =
    ["Problem::new(", "unfit(", "unauthorized(", "absent(", "failed(", "invalid(", "refused("];

/// Every message of the code is explained by the page.
pub(crate) fn check(root: &Path) -> Vec<String> {
    let page = plain(&fs::read_to_string(root.join(PAGE)).unwrap_or_default());
    let mut complaints = Vec::new();
    let mut told = std::collections::BTreeSet::new();
    let mut demand = |place: &str, piece: String| {
        if !page.contains(&piece) && told.insert(piece.clone()) {
            complaints.push(format!(
                "{place}: {PAGE} does not explain “{piece}”; say there what causes it, and the cure"
            ));
        }
    };
    for path in rust_files(root) {
        let place = place(root, &path);
        let is_shipped = place.starts_with("crates/") || place.starts_with("drivers/");
        if !is_shipped || place.contains("/tests") || place.contains("testing") {
            continue;
        }
        let text = fs::read_to_string(&path).expect("the file exists");
        let text = shipped(&text);
        texts(&text).into_iter().for_each(|text| demand(&place, text));
        kinds(&text).into_iter().for_each(|kind| demand(&place, kind));
    }
    for (file, item) in SAID {
        let text = fs::read_to_string(root.join(file)).unwrap_or_default();
        match behind(&text, item) {
            Some(body) => arms(body).into_iter().for_each(|text| demand(file, text)),
            None => demand(
                file,
                format!("{item} (which `tidy/src/messages.rs` names, and is not there)"),
            ),
        }
    }
    complaints
}

/// The file without its tests and without comments of whole lines, which have examples.
fn shipped(text: &str) -> String {
    // Tests may also be declared above what they test, and be elsewhere.
    let tests = text.find("\n#[cfg(test)]\nmod tests {").unwrap_or(text.len());
    let lines = text[..tests].lines();
    let mut kept = String::new();
    for line in lines.filter(|line| !line.trim_start().starts_with("//")) {
        // A call that is written in several lines is one.
        match line.trim_start() {
            method if method.starts_with('.') => kept.push_str(method),
            _ => kept.extend(["\n", line]),
        }
    }
    kept
}

/// What is told to logs, by the compiler, and where a server cannot be configured so.
fn texts(text: &str) -> Vec<String> {
    let mut found = Vec::new();
    for opening in ["warn!(", "error!("] {
        for body in calls(text, opening) {
            found.extend(literals(body).last().and_then(|text| piece(text)));
        }
    }
    for body in calls(text, "on_unimplemented(") {
        let message = literals(body).into_iter().next();
        found.extend(message.and_then(|text| piece(&text)));
    }
    for opening in ["Error::Config(", "requirements.fault(", "UrlError("] {
        for body in calls(text, opening) {
            found.extend(literals(body).first().and_then(|text| piece(text)));
        }
    }
    found
}

/// The kinds of problems: in the arguments, the first text that is made as one.
fn kinds(text: &str) -> Vec<String> {
    let mut found = Vec::new();
    for opening in WITH_KIND {
        for body in calls(text, opening) {
            let is_kind = |text: &String| {
                text.bytes()
                    .all(|byte| byte.is_ascii_lowercase() || byte.is_ascii_digit() || byte == b'-')
                    && text.contains('-')
            };
            found.extend(literals(body).into_iter().find(is_kind));
        }
    }
    found
}

/// The arguments of each call.
fn calls<'t>(text: &'t str, opening: &str) -> Vec<&'t str> {
    let starts = text.match_indices(opening).map(|(at, _)| at + opening.len() - 1);
    starts.map(|at| balanced(&text[at..])).collect()
}

/// What stands in the braces behind these words.
fn behind<'t>(text: &'t str, item: &str) -> Option<&'t str> {
    let at = text.find(&format!("{item} {{")).or_else(|| text.find(&format!("{item}(")))?;
    let brace = at + text[at..].find('{')?;
    Some(balanced(&text[brace..]))
}

/// From an opening bracket to the one that closes it. Brackets in texts do not count.
fn balanced(text: &str) -> &str {
    let (mut depth, mut rest) = (0_usize, text);
    while let Some(letter) = rest.chars().next() {
        let at = text.len() - rest.len();
        match letter {
            '"' => {
                rest = &rest[literal(rest).map_or(1, |(_, used)| used)..];
                continue;
            }
            '(' | '[' | '{' => depth += 1,
            ')' | ']' | '}' => depth = depth.saturating_sub(1),
            _ => {}
        }
        if depth == 0 {
            return &text[..at + letter.len_utf8()];
        }
        rest = &rest[letter.len_utf8()..];
    }
    text
}

/// The texts in a piece of code, as they are at run time.
fn literals(code: &str) -> Vec<String> {
    let (mut found, mut rest) = (Vec::new(), code);
    while let Some(at) = rest.find('"') {
        let Some((text, used)) = literal(&rest[at..]) else { break };
        found.push(text);
        rest = &rest[at + used..];
    }
    found
}

/// The text that begins here with its quotation mark, and how long it is in the code.
fn literal(code: &str) -> Option<(String, usize)> {
    let (mut text, mut letters) = (String::new(), code.char_indices().skip(1).peekable());
    while let Some((at, letter)) = letters.next() {
        match letter {
            '"' => return Some((text, at + 1)),
            '\\' => match letters.next()?.1 {
                // The line goes on in the next one.
                '\n' => while letters.next_if(|(_, letter)| letter.is_whitespace()).is_some() {},
                'n' => text.push(' '),
                escaped => text.push(escaped),
            },
            letter => text.push(letter),
        }
    }
    None
}

/// Of each arm of a `match`, or of the whole if there is none, the first text.
fn arms(body: &str) -> Vec<String> {
    let first = |arm: &str| {
        let mut texts = literals(arm).into_iter().filter(|text| !is_remedy(text));
        texts.find_map(|text| piece(&text))
    };
    if body.contains("=>") {
        return body.split("=>").skip(1).filter_map(first).collect();
    }
    literals(body).iter().filter(|text| !is_remedy(text)).filter_map(|text| piece(text)).collect()
}

/// Does the text end a message that another one has begun?
fn is_remedy(text: &str) -> bool {
    text.starts_with([';', ' ', ':'])
}

/// What of a text the page must have: the first piece of some length between what differs and before the remedy, which
/// the page says in its own words. `None`: there is none.
fn piece(text: &str) -> Option<String> {
    // A brace is written twice in a text with places, and marked as code in others.
    let text = text.replace("`{`", "\u{1}").replace("`}`", "\u{2}");
    let text = text.replace("{{", "\u{1}").replace("}}", "\u{2}");
    let pieces = text.split('{').enumerate().map(|(number, piece)| match number {
        0 => piece,
        _ => piece.split_once('}').map_or(piece, |(_, rest)| rest),
    });
    let parts = pieces.flat_map(|piece| piece.split([';', ':']));
    let parts = parts.map(|part| plain(&part.replace('\u{1}', "{").replace('\u{2}', "}")));
    let parts = parts.map(|part| part.trim_matches([' ', ',', '.', '(', ')']).to_owned());
    let parts: Vec<_> = parts.filter(|part| part.contains(' ')).collect();
    let of_length = |letters| parts.iter().find(|part| part.len() >= letters);
    let told = of_length(LETTERS_ENOUGH).or_else(|| of_length(LETTERS_MIN))?;
    let mut letters = 0;
    let words = told.split_inclusive(' ').take_while(|word| {
        letters += word.len();
        letters <= LETTERS_MAX
    });
    Some(words.collect::<String>().trim_matches([' ', ',', '.']).to_owned())
}

/// Without marks of code and escapes, and with single spaces.
fn plain(text: &str) -> String {
    let text = text.replace(['`', '"'], "").replace("\\|", "|");
    text.split_whitespace().collect::<Vec<_>>().join(" ")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_texts_of_a_file_are_found() {
        let code = r#"
            tracing::warn!(target: "peregrine", %error, "a pool of handlers is {size} full; \
                make it larger");
            // tracing::warn!("a comment is no message");
            #[diagnostic::on_unimplemented(message = "`{Self}` is no bird", label = "no bird")]
            return Err(Problem::new(StatusCode::CONFLICT, "bird-taken", format!("{name} is taken")));
            tracing::error!("{text}");
        "#;
        assert_eq!(texts(&shipped(code)), ["a pool of handlers is", "is no bird"]);
        assert_eq!(
            piece("the nest is not {state}: build another one").as_deref(),
            Some("the nest is not")
        );
        assert_eq!(kinds(&shipped(code)), ["bird-taken"]);
    }

    #[test]
    fn of_each_arm_the_first_text_counts() {
        let code = "impl Display for Bad { fn fmt() { match self { A => { write!(f, \"cannot fly to {place}: {x}\")?; \
            f.write_str(\"to mend it, grow wings\") } B(x) => write!(f, \"{x} has `{{` in it\"), C => f.write_str(\"short\") } } }";
        let body = behind(code, "Display for Bad").expect("it is there");
        assert_eq!(arms(body), ["cannot fly to", "has { in it"]);
        assert!(behind(code, "Display for Good").is_none());
    }

    #[test]
    fn a_page_may_break_lines_and_mark_code() {
        assert_eq!(plain("`a \\| b`\n c"), "a | b c");
        let long = "x ".repeat(100);
        assert!(piece(&long).is_some_and(|piece| piece.len() <= LETTERS_MAX));
    }
}
