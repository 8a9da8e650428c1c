//! Byte ranges of a file (RFC 9110, section 14).

/// The maximum number of parts; with more, the whole file is sent.
pub(crate) const RANGES_MAX: usize = 16;

/// A byte range of a file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct ByteRange {
    pub(crate) start: u64,
    pub(crate) length: u64,
}

/// The interpretation of `Range`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Ranges {
    /// Not understood, or too many parts: send the whole file.
    Full,
    /// Outside the file: 416.
    Unsatisfiable,
    Satisfiable(Vec<ByteRange>),
}

/// Parses the value of `Range` for a file of `length` bytes.
pub(crate) fn parse(value: &[u8], length: u64) -> Ranges {
    let Ok(value) = std::str::from_utf8(value) else { return Ranges::Full };
    let Some((unit, list)) = value.split_once('=') else { return Ranges::Full };
    // RFC 9110 §14.2: a unit that is not understood is ignored.
    if !unit.trim_ascii().eq_ignore_ascii_case("bytes") {
        return Ranges::Full;
    }
    let (mut parts, mut count) = (Vec::new(), 0);
    for item in list.split(',').map(str::trim_ascii).filter(|item| !item.is_empty()) {
        count += 1;
        let Some(part) = parse_range_spec(item, length) else { return Ranges::Full };
        if count > RANGES_MAX {
            return Ranges::Full;
        }
        parts.extend(part);
    }
    // RFC 9110 §14.2: overlapping parts that exceed the file in total are an attack or a mistake.
    let requested: u64 = parts.iter().map(|part| part.length).sum();
    match () {
        () if count == 0 || parts.len() > 1 && requested > length => Ranges::Full,
        () if parts.is_empty() => Ranges::Unsatisfiable,
        () => Ranges::Satisfiable(parts),
    }
}

/// Parses one part. The outer `None` means a syntax error, the inner one a part outside the file.
fn parse_range_spec(item: &str, length: u64) -> Option<Option<ByteRange>> {
    let (first, last) = item.split_once('-')?;
    let (first, last) = (parse_position(first)?, parse_position(last)?);
    let part = match (first, last) {
        (None, None) => return None,
        // A suffix: the last `count` bytes, or the whole file.
        (None, Some(count)) => {
            let count = count.min(length);
            ByteRange { start: length - count, length: count }
        }
        (Some(first), None) => ByteRange { start: first, length: length.saturating_sub(first) },
        (Some(first), Some(last)) if last < first => return None,
        (Some(first), Some(last)) => {
            let end = last.saturating_add(1).min(length);
            ByteRange { start: first, length: end.saturating_sub(first) }
        }
    };
    Some((part.length > 0).then_some(part))
}

/// Parses an optional number; the outer `None` means a syntax error. A number that overflows is
/// beyond the end of any file.
fn parse_position(text: &str) -> Option<Option<u64>> {
    let text = text.trim_ascii();
    if text.is_empty() {
        return Some(None);
    }
    let is_number = text.bytes().all(|byte| byte.is_ascii_digit());
    is_number.then(|| Some(text.parse().unwrap_or(u64::MAX)))
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn parts(parts: &[(u64, u64)]) -> Ranges {
        Ranges::Satisfiable(
            parts
                .iter()
                .map(|(start, length)| ByteRange { start: *start, length: *length })
                .collect(),
        )
    }

    #[test]
    fn parses_ranges_for_a_given_length() {
        for (value, ranges) in [
            ("bytes=0-0", parts(&[(0, 1)])),
            ("bytes=2-", parts(&[(2, 8)])),
            ("bytes=-3", parts(&[(7, 3)])),
            ("bytes=-30", parts(&[(0, 10)])),
            ("bytes=5-99999999999999999999999", parts(&[(5, 5)])),
            ("Bytes = 0-1 , ,4-5,20-30", parts(&[(0, 2), (4, 2)])),
            ("bytes=9-9,0-0", parts(&[(9, 1), (0, 1)])),
            ("bytes=10-", Ranges::Unsatisfiable),
            ("bytes=10-20,-0", Ranges::Unsatisfiable),
            ("bytes=-0", Ranges::Unsatisfiable),
            ("bytes=3-2", Ranges::Full),
            ("bytes=-", Ranges::Full),
            ("bytes=", Ranges::Full),
            ("bytes=a-b", Ranges::Full),
            ("bytes=+1-2", Ranges::Full),
            ("bytes", Ranges::Full),
            ("lines=0-1", Ranges::Full),
            ("bytes=0-9,0-9", Ranges::Full),
        ] {
            assert_eq!(parse(value.as_bytes(), 10), ranges, "{value}");
        }
        assert_eq!(parse(b"bytes=0-", 0), Ranges::Unsatisfiable);
        let many = |count| format!("bytes={}", vec!["1-1"; count].join(","));
        assert!(matches!(parse(many(RANGES_MAX).as_bytes(), 100), Ranges::Satisfiable(_)));
        assert_eq!(parse(many(RANGES_MAX + 1).as_bytes(), 100), Ranges::Full);
    }

    proptest! {
        #[test]
        fn ranges_lie_within_the_file(value in "bytes=[-0-9, ]{0,24}", length in 0..200u64) {
            if let Ranges::Satisfiable(parts) = parse(value.as_bytes(), length) {
                prop_assert!(!parts.is_empty() && parts.len() <= RANGES_MAX);
                for part in parts {
                    prop_assert!(part.length > 0 && part.start + part.length <= length);
                }
            }
        }
    }
}
