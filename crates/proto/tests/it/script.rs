//! The format of the case files.
//!
//! A file is a list of cases, separated by empty lines; `#` begins a comment line. A case is a list
//! of `key: text` lines, the first one `case: NAME`. Bytes are written with `\r \n \t \0 \xHH \\`
//! and `\{text*COUNT}` for repetition. Lines of one key that takes bytes are joined.

/// One case: its lines as keys and texts, in order.
pub(crate) struct Case {
    pub(crate) lines: Vec<(String, String)>,
}

impl Case {
    /// The text of the only line with this key.
    pub(crate) fn text(&self, key: &str) -> Option<&str> {
        self.texts(key).next()
    }

    /// The texts of all lines with this key.
    pub(crate) fn texts<'a>(&'a self, key: &str) -> impl Iterator<Item = &'a str> + use<'a> {
        let key = key.to_owned();
        self.lines.iter().filter(move |line| line.0 == key).map(|line| line.1.as_str())
    }

    /// The bytes of all lines with this key, joined.
    #[allow(dead_code, reason = "the HTTP/2 cases use the notation of `wire.rs`")]
    pub(crate) fn bytes(&self, key: &str) -> Vec<u8> {
        self.texts(key).flat_map(unescape).collect()
    }
}

/// Parses a file of cases. Panics with the line that cannot be parsed.
pub(crate) fn parse(file: &str) -> Vec<Case> {
    let mut cases: Vec<Case> = Vec::new();
    for line in file.lines() {
        if line.is_empty() || line.starts_with('#') {
            continue;
        }
        let (key, text) = line.split_once(':').unwrap_or_else(|| panic!("no key in {line:?}"));
        let text = text.strip_prefix(' ').unwrap_or(text);
        if key == "case" {
            cases.push(Case { lines: Vec::new() });
        }
        let case = cases.last_mut().unwrap_or_else(|| panic!("{line:?} is in no case"));
        case.lines.push((key.to_owned(), text.to_owned()));
    }
    cases
}

/// The bytes of a text with escapes.
pub(crate) fn unescape(text: &str) -> Vec<u8> {
    let mut bytes = Vec::new();
    let mut rest = text;
    while let Some(at) = rest.find('\\') {
        bytes.extend_from_slice(&rest.as_bytes()[..at]);
        let escape = &rest[at + 1..];
        let used = match escape.as_bytes().first() {
            Some(b'r') => push(&mut bytes, b'\r'),
            Some(b'n') => push(&mut bytes, b'\n'),
            Some(b't') => push(&mut bytes, b'\t'),
            Some(b'0') => push(&mut bytes, 0),
            Some(b'\\') => push(&mut bytes, b'\\'),
            Some(b'x') => {
                bytes.push(u8::from_str_radix(&escape[1..3], 16).expect("two hexadecimal digits"));
                3
            }
            Some(b'{') => {
                let end = escape.find('}').expect("a repetition ends with a brace");
                let (repeated, count) =
                    escape[1..end].rsplit_once('*').expect("a repetition counts");
                let count = count.parse().expect("a count is a number");
                bytes.extend(unescape(repeated).repeat(count));
                end + 1
            }
            _ => panic!("no such escape: {text:?}"),
        };
        rest = &escape[used..];
    }
    bytes.extend_from_slice(rest.as_bytes());
    bytes
}

fn push(bytes: &mut Vec<u8>, byte: u8) -> usize {
    bytes.push(byte);
    1
}

/// Bytes as a text with escapes.
pub(crate) fn escape(bytes: &[u8]) -> String {
    let mut text = String::new();
    for byte in bytes {
        match byte {
            b'\r' => text.push_str("\\r"),
            b'\n' => text.push_str("\\n"),
            b'\t' => text.push_str("\\t"),
            b'\\' => text.push_str("\\\\"),
            b' '..=b'~' => text.push(char::from(*byte)),
            _ => text.push_str(&format!("\\x{byte:02x}")),
        }
    }
    text
}
