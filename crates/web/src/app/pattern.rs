//! Expands patterns as applications write them, with types and optional parameters, into the
//! patterns of the router.

use std::borrow::Cow;
use std::net::IpAddr;

/// The last part of a pattern that matches everything below a prefix
/// ([`App::subtree`](crate::App::subtree)).
pub const CATCH_ALL: &str = "/{*peregrine_rest}";

/// The pattern for display: a subtree's [`CATCH_ALL`] is shown as `/*`.
///
/// ```
/// use peregrine::web::route::display_pattern;
/// use peregrine::web::scope::CATCH_ALL;
///
/// assert_eq!(display_pattern(&format!("/api{CATCH_ALL}")), "/api/*");
/// assert_eq!(display_pattern("/users/{id}"), "/users/{id}");
/// ```
#[must_use]
pub fn display_pattern(pattern: &str) -> Cow<'_, str> {
    match pattern.strip_suffix(CATCH_ALL) {
        Some(root) => Cow::Owned(format!("{root}/*")),
        None => Cow::Borrowed(pattern),
    }
}

/// One of the patterns that a written pattern expands to.
#[derive(Clone, Debug)]
pub(crate) struct ExpandedPattern {
    /// The pattern in the router's syntax.
    pub(crate) pattern: String,
    /// The typed parameters.
    pub(crate) typed_parameters: Vec<(String, ParameterType)>,
    /// The number of optional parameters that the pattern omits.
    pub(crate) omitted_parameters: usize,
    /// The pattern is another one of the same expansion with a trailing slash added.
    pub(crate) is_slash_variant: bool,
    /// As for `RouteEntry::needs_slash_variant`.
    pub(crate) needs_slash_variant: bool,
}

impl ExpandedPattern {
    /// A pattern that omits no parameters and needs no slash variant.
    fn new(pattern: String, typed_parameters: Vec<(String, ParameterType)>) -> Self {
        Self {
            pattern,
            typed_parameters,
            omitted_parameters: 0,
            is_slash_variant: false,
            needs_slash_variant: false,
        }
    }
}

/// The type of a typed parameter. If a value does not fit the type, the next matching route is
/// tried.
#[derive(Clone, Copy, Debug)]
pub(crate) struct ParameterType {
    pub(crate) name: &'static str,
    accepts: fn(&str) -> bool,
}

macro_rules! parsed_types {
    ($($name:literal $type:ty;)*) => {
        [$(ParameterType { name: $name, accepts: |text| text.parse::<$type>().is_ok() },)*]
    };
}

const PARSED_TYPES: [ParameterType; 12] = parsed_types! {
    "u8" u8;
    "u16" u16;
    "u32" u32;
    "u64" u64;
    "u128" u128;
    "i8" i8;
    "i16" i16;
    "i32" i32;
    "i64" i64;
    "i128" i128;
    "bool" bool;
    "ip" IpAddr;
};

const OTHER_TYPES: [ParameterType; 7] = [
    ParameterType { name: "f32", accepts: |text| text.parse().is_ok_and(f32::is_finite) },
    ParameterType { name: "f64", accepts: |text| text.parse().is_ok_and(f64::is_finite) },
    ParameterType { name: "uuid", accepts: is_uuid },
    ParameterType {
        name: "alpha",
        accepts: |text| text.bytes().all(|byte| byte.is_ascii_alphabetic()),
    },
    ParameterType {
        name: "alnum",
        accepts: |text| text.bytes().all(|byte| byte.is_ascii_alphanumeric()),
    },
    ParameterType {
        name: "digits",
        accepts: |text| text.bytes().all(|byte| byte.is_ascii_digit()),
    },
    ParameterType {
        name: "hex",
        accepts: |text| text.bytes().all(|byte| byte.is_ascii_hexdigit()),
    },
];

impl ParameterType {
    fn from_name(name: &str) -> Option<Self> {
        PARSED_TYPES.iter().chain(&OTHER_TYPES).find(|kind| kind.name == name).copied()
    }

    /// Whether the raw value fits after percent-decoding.
    pub(crate) fn accepts(self, raw: &[u8]) -> bool {
        peregrine_router::decode(raw).is_ok_and(|text| (self.accepts)(&text))
    }
}

/// RFC 9562: 8-4-4-4-12 hexadecimal digits.
fn is_uuid(text: &str) -> bool {
    let is_valid = |(index, byte): (usize, u8)| match index {
        8 | 13 | 18 | 23 => byte == b'-',
        _ => byte.is_ascii_hexdigit(),
    };
    text.len() == 36 && text.bytes().enumerate().all(is_valid)
}

/// Splits `text` at its first parameter: the text before, the text between the braces, and the text
/// after. `{{` and `}}` are literal braces.
#[doc(hidden)]
#[must_use]
pub fn next_parameter(text: &str) -> Option<(&str, &str, &str)> {
    let mut start = 0;
    loop {
        let open = text[start..].find('{')? + start;
        if text[open + 1..].starts_with('{') {
            start = open + 2;
            continue;
        }
        let close = text[open..].find('}')? + open;
        return Some((&text[..open], &text[open + 1..close], &text[close + 1..]));
    }
}

/// Returns the patterns that a written pattern expands to. The last one has all optional
/// parameters; each pattern before it omits some. This function checks only types and optional
/// parameters. The router checks everything else.
pub(crate) fn expand(written: &str) -> Result<Vec<ExpandedPattern>, String> {
    let (mut expanded, mut typed): (Vec<ExpandedPattern>, Vec<_>) = (Vec::new(), Vec::new());
    let (mut pattern, mut rest) = (String::with_capacity(written.len()), written);
    // For an optional catch-all, such as `/files/{*path?}`, the pattern up to and including the
    // slash before it.
    let mut slash_variant = None;
    while let Some((before, parameter, after)) = next_parameter(rest) {
        pattern.push_str(before);
        let (parameter, is_optional) = match parameter.strip_suffix('?') {
            Some(parameter) => (parameter, true),
            None => (parameter, false),
        };
        if is_optional {
            if !pattern.ends_with('/') || !(after.is_empty() || after.starts_with('/')) {
                return Err(format!(
                    "the optional parameter `{{{parameter}?}}` must be a whole segment"
                ));
            }
            let shorter = &pattern[..pattern.len() - 1];
            let shorter = if shorter.is_empty() { "/" } else { shorter };
            let is_catch_all = parameter.starts_with('*');
            expanded.push(ExpandedPattern {
                needs_slash_variant: is_catch_all,
                ..ExpandedPattern::new(shorter.to_owned(), typed.clone())
            });
            slash_variant = (is_catch_all && pattern != "/").then(|| ExpandedPattern {
                omitted_parameters: 1,
                is_slash_variant: true,
                ..ExpandedPattern::new(pattern.clone(), typed.clone())
            });
        } else if !expanded.is_empty() {
            return Err(format!(
                "`{{{parameter}}}` follows an optional parameter, so it must be `{{{parameter}?}}`"
            ));
        }
        let name = match parameter.split_once(':') {
            Some((name, kind)) => {
                typed.push((name.to_owned(), parse_type(parameter, kind)?));
                name
            }
            None => parameter,
        };
        pattern.extend(["{", name, "}"]);
        rest = after;
    }
    if !expanded.is_empty() && !rest.is_empty() {
        return Err(format!(
            "`{rest}` follows an optional parameter; only optional parameters may follow one"
        ));
    }
    pattern.push_str(rest);
    // Each pattern so far ends before one of the optional parameters: the first pattern omits all
    // of them, the last one omits one.
    let count = expanded.len();
    for (shorter, omitted) in expanded.iter_mut().zip((1..=count).rev()) {
        shorter.omitted_parameters = omitted;
    }
    if let Some(variant) = slash_variant {
        // In front, because URLs use the last pattern that has the given parameters.
        expanded.insert(0, variant);
    }
    expanded.push(ExpandedPattern::new(pattern, typed));
    Ok(expanded)
}

fn parse_type(parameter: &str, kind: &str) -> Result<ParameterType, String> {
    if parameter.starts_with('*') {
        return Err(format!("`{{{parameter}}}` is a catch-all, which cannot have a type"));
    }
    ParameterType::from_name(kind).ok_or_else(|| {
        let names: Vec<_> = PARSED_TYPES.iter().chain(&OTHER_TYPES).map(|kind| kind.name).collect();
        format!(
            "`{kind}` in `{{{parameter}}}` is not a segment type; the types are {}",
            names.join(", ")
        )
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn patterns(written: &str) -> Vec<(String, usize)> {
        let all = expand(written).unwrap_or_else(|reason| panic!("{written}: {reason}"));
        all.into_iter().map(|expanded| (expanded.pattern, expanded.omitted_parameters)).collect()
    }

    #[test]
    fn expands_optional_parameters_to_patterns_without_them() {
        for (written, expected) in [
            ("/", vec![("/", 0)]),
            ("/a/{b}", vec![("/a/{b}", 0)]),
            ("/{a?}", vec![("/", 1), ("/{a}", 0)]),
            ("/a/{b?}", vec![("/a", 1), ("/a/{b}", 0)]),
            (
                "/a/{b:u8}/{c?}/{d:u8?}",
                vec![("/a/{b}", 2), ("/a/{b}/{c}", 1), ("/a/{b}/{c}/{d}", 0)],
            ),
            ("/f/{*p?}", vec![("/f/", 1), ("/f", 1), ("/f/{*p}", 0)]),
            ("/{*p?}", vec![("/", 1), ("/{*p}", 0)]),
            ("/{{a?}}", vec![("/{{a?}}", 0)]),
            ("/{a", vec![("/{a", 0)]),
        ] {
            let expected: Vec<_> = expected.into_iter().map(|(a, b)| (a.to_owned(), b)).collect();
            assert_eq!(patterns(written), expected, "{written}");
        }
        let expanded = expand("/f/{*p?}").expect("a valid pattern");
        assert_eq!(
            expanded.iter().map(|variant| variant.is_slash_variant).collect::<Vec<_>>(),
            [true, false, false]
        );
    }

    #[test]
    fn rejects_invalid_optional_parameters_and_types_with_a_reason() {
        for (written, reason) in [
            ("/{a?}/b", "`/b` follows an optional parameter"),
            ("/{a?}/{b}", "`{b}` follows"),
            ("/{a?}.json", "whole segment"),
            ("/v{a?}", "whole segment"),
            ("/{a:thing}", "`thing` in `{a:thing}` is not a segment type; the types are u8, u16"),
            ("/{a:}", "`` in `{a:}` is not a segment type"),
            ("/{*a:u8}", "`{*a:u8}` is a catch-all, which cannot have a type"),
        ] {
            let error = expand(written).expect_err(written);
            assert!(error.contains(reason), "{written}: {error}");
        }
    }

    #[test]
    fn decodes_a_value_before_checking_its_type() {
        for (kind, good, bad) in [
            ("u8", "255", "256"),
            ("i8", "-128", "128"),
            ("u32", "%31", "x"),
            ("f64", "1.5", "1,5"),
            ("f64", "1e39", "1e999"),
            ("f64", "-0", "NaN"),
            ("f64", "1e-999", "-inf"),
            ("f32", "1e38", "1e39"),
            ("f32", "0", "nan"),
            ("f32", "-1.", "%69nf"),
            ("f32", ".5", "-Infinity"),
            ("bool", "true", "yes"),
            ("ip", "::1", "1"),
            (
                "uuid",
                "01234567-89ab-cdef-0123-456789ABCDEF",
                "01234567-89ab-cdef-0123-456789ABCDEG",
            ),
            (
                "uuid",
                "01234567-89ab-cdef-0123-456789abcdef",
                "0123456789ab-cdef-0123-456789abcdef-",
            ),
            ("alpha", "abC", "ab1"),
            ("alnum", "ab1", "a-b"),
            ("digits", "0000", "+1"),
            ("hex", "0aF", "0g"),
        ] {
            let kind = ParameterType::from_name(kind).expect("a known type");
            assert!(kind.accepts(good.as_bytes()) && !kind.accepts(bad.as_bytes()), "{kind:?}");
            assert!(!kind.accepts(b"%FF"));
        }
    }
}
