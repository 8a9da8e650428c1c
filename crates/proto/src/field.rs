//! The syntax of field names and values, and the well-known names.

macro_rules! known_fields {
    ($($variant:ident = $name:literal,)*) => {
        /// A well-known field name, in one byte. A set of these names fits into 64 bits.
        #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
        #[repr(u8)]
        pub enum KnownField {
            $(
                #[doc = concat!("The name `", $name, "`.")]
                $variant,
            )*
            /// Any other name; the field's span contains it.
            Other,
        }

        impl KnownField {
            /// Every variant but [`KnownField::Other`], in order.
            pub const ALL: &'static [Self] = &[$(Self::$variant,)*];

            const NAMES: &'static [&'static str] = &[$($name,)*];
        }
    };
}

known_fields! {
    Host = "host",
    ContentLength = "content-length",
    TransferEncoding = "transfer-encoding",
    Connection = "connection",
    Expect = "expect",
    Upgrade = "upgrade",
    Te = "te",
    Trailer = "trailer",
    KeepAlive = "keep-alive",
    Accept = "accept",
    AcceptCharset = "accept-charset",
    AcceptEncoding = "accept-encoding",
    AcceptLanguage = "accept-language",
    AccessControlRequestHeaders = "access-control-request-headers",
    AccessControlRequestMethod = "access-control-request-method",
    Age = "age",
    Authorization = "authorization",
    CacheControl = "cache-control",
    ContentDisposition = "content-disposition",
    ContentEncoding = "content-encoding",
    ContentLanguage = "content-language",
    ContentLocation = "content-location",
    ContentRange = "content-range",
    ContentType = "content-type",
    Cookie = "cookie",
    Date = "date",
    Dnt = "dnt",
    Forwarded = "forwarded",
    From = "from",
    Http2Settings = "http2-settings",
    IfMatch = "if-match",
    IfModifiedSince = "if-modified-since",
    IfNoneMatch = "if-none-match",
    IfRange = "if-range",
    IfUnmodifiedSince = "if-unmodified-since",
    LastEventId = "last-event-id",
    MaxForwards = "max-forwards",
    Origin = "origin",
    Pragma = "pragma",
    Priority = "priority",
    ProxyAuthorization = "proxy-authorization",
    Range = "range",
    Referer = "referer",
    SecFetchDest = "sec-fetch-dest",
    SecFetchMode = "sec-fetch-mode",
    SecFetchSite = "sec-fetch-site",
    SecFetchUser = "sec-fetch-user",
    SecWebsocketExtensions = "sec-websocket-extensions",
    SecWebsocketKey = "sec-websocket-key",
    SecWebsocketProtocol = "sec-websocket-protocol",
    SecWebsocketVersion = "sec-websocket-version",
    SetCookie = "set-cookie",
    Traceparent = "traceparent",
    Tracestate = "tracestate",
    UpgradeInsecureRequests = "upgrade-insecure-requests",
    UserAgent = "user-agent",
    Via = "via",
    XForwardedFor = "x-forwarded-for",
    XForwardedHost = "x-forwarded-host",
    XForwardedProto = "x-forwarded-proto",
    XRealIp = "x-real-ip",
    XRequestId = "x-request-id",
    XRequestedWith = "x-requested-with",
}

impl KnownField {
    /// The name in lower case; empty for [`KnownField::Other`].
    #[must_use]
    pub const fn name(self) -> &'static str {
        if (self as usize) < Self::NAMES.len() { Self::NAMES[self as usize] } else { "" }
    }

    /// The variant of a name, in any case. RFC 9110 §5.1: field names are case-insensitive.
    ///
    /// A hash of the first and last bytes yields one candidate, which is then compared completely.
    /// So unless this returns [`KnownField::Other`], the name is known to be a token.
    #[inline]
    #[must_use]
    pub fn from_name(name: &[u8]) -> Self {
        if name.len() < NAME_BYTES_MIN || name.len() > NAME_BYTES_MAX {
            return Self::Other;
        }
        let edges = NameEdges::new(name);
        let candidate = &CANDIDATES[usize::from(SLOTS[edges.hash(name.len())])];
        if usize::from(candidate.length) == name.len() && candidate.matches(name, edges) {
            candidate.known
        } else {
            Self::Other
        }
    }

    /// Returns whether the field is allowed and meaningful as a trailer.
    // RFC 9110 §6.5.1: a trailer must not be used for framing, routing, authentication, request
    // modifiers, response controls, or the content's format.
    #[must_use]
    pub(crate) const fn is_allowed_in_trailers(self) -> bool {
        matches!(self, Self::Other | Self::Traceparent | Self::Tracestate | Self::XRequestId)
    }

    /// The name's bit in a set of names.
    #[inline]
    pub(crate) const fn bit(self) -> u64 {
        1 << self as u64
    }
}

/// The elements of a comma-separated list of tokens, without the white space around them.
// RFC 9110 §5.6.1.2: a recipient must parse and ignore a reasonable number of empty list elements;
// the limit on a field's length bounds them.
pub fn split_list(value: &[u8]) -> impl Iterator<Item = &[u8]> {
    value.split(|byte| *byte == b',').map(trim_ows).filter(|element| !element.is_empty())
}

/// `value` without the spaces and tabs at its ends.
#[must_use]
pub fn trim_ows(mut value: &[u8]) -> &[u8] {
    while let [b' ' | b'\t', rest @ ..] = value {
        value = rest;
    }
    while let [rest @ .., b' ' | b'\t'] = value {
        value = rest;
    }
    value
}

/// Returns whether `bytes` is a token: one or more token bytes.
#[must_use]
pub fn is_token(bytes: &[u8]) -> bool {
    !bytes.is_empty() && bytes.iter().all(|byte| has_class(*byte, TOKEN))
}

/// Returns whether a byte is in a class.
#[inline]
pub(crate) const fn has_class(byte: u8, class: u8) -> bool {
    CLASSES[byte as usize] & class != 0
}

/// The offset, at or after `from`, of the first byte that is not allowed in a field value;
/// `bytes.len()` if all are.
// RFC 9110 §5.5: a value is made of visible bytes, obs-text, spaces and tabs.
#[inline]
pub(crate) fn value_end(bytes: &[u8], from: usize) -> usize {
    let mut at = from;
    while let Some(chunk) = bytes.get(at..).and_then(<[u8]>::first_chunk::<8>) {
        let mask = control_byte_mask(u64::from_le_bytes(*chunk));
        if mask == 0 {
            at += 8;
            continue;
        }
        at += (mask.trailing_zeros() / 8) as usize;
        if bytes[at] != b'\t' {
            return at;
        }
        at += 1;
    }
    while at < bytes.len() && has_class(bytes[at], VALUE) {
        at += 1;
    }
    at
}

/// The offset of the first colon at or after `from`, if any.
#[inline]
pub(crate) fn find_colon(bytes: &[u8], from: usize) -> Option<usize> {
    let mut at = from;
    while let Some(chunk) = bytes.get(at..).and_then(<[u8]>::first_chunk::<8>) {
        let mask = zero_byte_mask(u64::from_le_bytes(*chunk) ^ (ONES * b':' as u64));
        if mask != 0 {
            return Some(at + (mask.trailing_zeros() / 8) as usize);
        }
        at += 8;
    }
    bytes.get(at..)?.iter().position(|byte| *byte == b':').map(|offset| at + offset)
}

const ONES: u64 = 0x0101_0101_0101_0101;
const HIGHS: u64 = 0x8080_8080_8080_8080;

/// The high bit of each zero byte. Only the lowest set bit is reliable, because a borrow can set
/// bits above it; callers ignore those.
#[inline]
const fn zero_byte_mask(word: u64) -> u64 {
    word.wrapping_sub(ONES) & !word & HIGHS
}

/// The high bit of each byte below 0x20 or equal to 0x7f. Again, only the lowest set bit is
/// reliable.
#[inline]
const fn control_byte_mask(word: u64) -> u64 {
    let low = word.wrapping_sub(ONES * 0x20) & !word & HIGHS;
    low | zero_byte_mask(word ^ (ONES * 0x7f))
}

/// RFC 9110 §5.6.2: a byte of a token.
pub(crate) const TOKEN: u8 = 1;
/// A byte of a field value: visible, obs-text, space or tab.
pub(crate) const VALUE: u8 = 2;
/// A byte of a request target's path: those of RFC 3986 §3.3, and `[ ] { } | ^`, which browsers
/// send unencoded and which are not delimiters in a request line.
pub(crate) const PATH: u8 = 4;
/// A byte of a query: a byte of a path, or `?`.
pub(crate) const QUERY: u8 = 8;
/// RFC 3986 §3.2.2: a byte of a registered name, except `%`.
pub(crate) const HOST: u8 = 16;
/// RFC 9110 §5.6.4: a byte of a quoted string that needs no backslash.
pub(crate) const QUOTED: u8 = 32;

static CLASSES: [u8; 256] = {
    let mut classes = [0; 256];
    let mut byte = 0;
    while byte < 256 {
        let letter = byte as u8;
        let alphanumeric = letter.is_ascii_alphanumeric();
        if alphanumeric || contains(b"!#$%&'*+-.^_`|~", letter) {
            classes[byte] |= TOKEN;
        }
        if letter == b'\t' || letter == b' ' || letter.is_ascii_graphic() || letter >= 0x80 {
            classes[byte] |= VALUE;
            if letter != b'"' && letter != b'\\' {
                classes[byte] |= QUOTED;
            }
        }
        if alphanumeric || contains(b"-._~!$&'()*+,;=:@/%[]{}|^", letter) {
            classes[byte] |= PATH | QUERY;
        }
        if letter == b'?' {
            classes[byte] |= QUERY;
        }
        if alphanumeric || contains(b"-._~!$&'()*+,;=", letter) {
            classes[byte] |= HOST;
        }
        byte += 1;
    }
    classes
};

const fn contains(set: &[u8], byte: u8) -> bool {
    let mut at = 0;
    while at < set.len() {
        if set[at] == byte {
            return true;
        }
        at += 1;
    }
    false
}

/// The shortest and the longest well-known name, in bytes.
const NAME_BYTES_MIN: usize = 2;
const NAME_BYTES_MAX: usize = 32;

/// A well-known name, as the masked words that a name is compared with.
struct PerfectHashEntry {
    known: KnownField,
    length: u8,
    edges: NameEdges,
    edge_masks: NameEdges,
    middle: [u64; 2],
    middle_masks: [u64; 2],
}

impl PerfectHashEntry {
    /// Returns whether `name`, which has the same length, is this name in any case. In the masks,
    /// all bits are set except the case bits of letters.
    #[inline]
    fn matches(&self, name: &[u8], edges: NameEdges) -> bool {
        let first = (edges.first ^ self.edges.first) & self.edge_masks.first;
        let last = (edges.last ^ self.edges.last) & self.edge_masks.last;
        first | last == 0 && (name.len() <= 16 || self.middle_matches(name))
    }

    fn middle_matches(&self, name: &[u8]) -> bool {
        let second = (word(name, 1) ^ self.middle[0]) & self.middle_masks[0];
        let third = (word(name, 2) ^ self.middle[1]) & self.middle_masks[1];
        second | third == 0
    }
}

/// The first and the last eight bytes of a name, which overlap or are the same in a short name.
#[derive(Clone, Copy)]
struct NameEdges {
    first: u64,
    last: u64,
}

impl NameEdges {
    /// The edges of a name of at least 2 bytes.
    #[inline]
    const fn new(name: &[u8]) -> Self {
        match (name.first_chunk::<8>(), name.last_chunk::<8>()) {
            (Some(first), Some(last)) => {
                Self { first: u64::from_le_bytes(*first), last: u64::from_le_bytes(*last) }
            }
            _ => Self { first: short_word(name), last: short_word(name) },
        }
    }

    /// Hashes a name by its edges and length. The multiplier was found by search; an assertion
    /// below checks that no two names share a slot.
    #[inline]
    const fn hash(self, length: usize) -> usize {
        const WITHOUT_CASE: u64 = ONES * 0xdf;
        let mixed = (self.first & WITHOUT_CASE) ^ (self.last & WITHOUT_CASE).rotate_left(19);
        (mixed.wrapping_add(length as u64).wrapping_mul(0x9fab_a827_2e50_bd4f) >> 55) as usize
    }
}

/// Word number `at` of a name of at least 16 bytes. The last word overlaps the one before it, so
/// nothing beyond the name is read.
const fn word(name: &[u8], at: usize) -> u64 {
    let start = if at * 8 + 8 <= name.len() { at * 8 } else { name.len() - 8 };
    match name.split_at(start).1.first_chunk::<8>() {
        Some(chunk) => u64::from_le_bytes(*chunk),
        None => unreachable!(),
    }
}

/// All bytes of a name of 2 to 7 bytes: two halves of four bytes that overlap, or three single
/// bytes.
const fn short_word(name: &[u8]) -> u64 {
    match (name.first_chunk::<4>(), name.last_chunk::<4>()) {
        (Some(first), Some(last)) => {
            u32::from_le_bytes(*first) as u64 | (u32::from_le_bytes(*last) as u64) << 32
        }
        _ => {
            let middle = (name[name.len() / 2] as u64) << 8;
            name[0] as u64 | middle | (name[name.len() - 1] as u64) << 16
        }
    }
}

/// The number of slots: a hash has nine bits.
const SLOT_COUNT: usize = 512;
/// The index of the candidate that matches no name.
const NONE: u8 = KnownField::ALL.len() as u8;

/// For each hash, the index of the only candidate with that hash, or [`NONE`].
static SLOTS: [u8; SLOT_COUNT] = {
    let mut slots = [NONE; SLOT_COUNT];
    let mut index = 0;
    while index < KnownField::ALL.len() {
        let name = KnownField::NAMES[index].as_bytes();
        let slot = NameEdges::new(name).hash(name.len());
        assert!(
            slots[slot] == NONE,
            "two well-known names share a slot: search for a new multiplier"
        );
        slots[slot] = index as u8;
        index += 1;
    }
    slots
};

static CANDIDATES: [PerfectHashEntry; KnownField::ALL.len() + 1] = {
    const NO_EDGES: NameEdges = NameEdges { first: 0, last: 0 };
    const EMPTY: PerfectHashEntry = PerfectHashEntry {
        known: KnownField::Other,
        length: 0,
        edges: NO_EDGES,
        edge_masks: NO_EDGES,
        middle: [0; 2],
        middle_masks: [0; 2],
    };
    let mut candidates = [EMPTY; KnownField::ALL.len() + 1];
    let mut index = 0;
    while index < KnownField::ALL.len() {
        let name = KnownField::NAMES[index].as_bytes();
        assert!(name.len() >= NAME_BYTES_MIN && name.len() <= NAME_BYTES_MAX);
        let mut mask = [0xff; NAME_BYTES_MAX];
        let mut position = 0;
        while position < name.len() {
            if name[position].is_ascii_lowercase() {
                mask[position] = 0xdf;
            }
            position += 1;
        }
        candidates[index].known = KnownField::ALL[index];
        candidates[index].length = name.len() as u8;
        let mask = mask.split_at(name.len()).0;
        candidates[index].edges = NameEdges::new(name);
        candidates[index].edge_masks = NameEdges::new(mask);
        if name.len() > 16 {
            candidates[index].middle = [word(name, 1), word(name, 2)];
            candidates[index].middle_masks = [word(mask, 1), word(mask, 2)];
        }
        index += 1;
    }
    candidates
};

const _: () = assert!(KnownField::ALL.len() < 64, "a set of names fits in 64 bits");

#[cfg(test)]
mod tests {
    use super::{KnownField, QUOTED, TOKEN, VALUE, find_colon, has_class, split_list, value_end};
    use proptest::prelude::*;

    #[test]
    fn finds_every_well_known_name_in_any_case() {
        for known in KnownField::ALL {
            assert_eq!(KnownField::from_name(known.name().as_bytes()), *known);
            assert_eq!(KnownField::from_name(known.name().to_ascii_uppercase().as_bytes()), *known);
        }
    }

    #[test]
    fn distinguishes_names_that_differ_in_one_byte() {
        for known in KnownField::ALL {
            for at in 0..known.name().len() {
                for byte in 0..=255_u8 {
                    let mut name = known.name().as_bytes().to_vec();
                    name[at] = byte;
                    let expected = KnownField::ALL
                        .iter()
                        .find(|field| field.name().as_bytes().eq_ignore_ascii_case(&name));
                    assert_eq!(
                        KnownField::from_name(&name),
                        *expected.unwrap_or(&KnownField::Other),
                        "{name:?}"
                    );
                }
            }
        }
    }

    #[test]
    fn names_that_are_too_short_or_too_long_are_not_found() {
        assert_eq!(KnownField::from_name(b""), KnownField::Other);
        assert_eq!(KnownField::from_name(b"t"), KnownField::Other);
        assert_eq!(KnownField::from_name(&[b'a'; 33]), KnownField::Other);
    }

    #[test]
    fn split_list_skips_empty_elements_and_trims_white_space() {
        let elements: Vec<_> = split_list(b" ,a ,\tb,, c d ,").collect();
        assert_eq!(elements, [&b"a"[..], b"b", b"c d"]);
    }

    #[test]
    fn byte_classes_have_the_sizes_of_the_grammar() {
        let count = |class| (0..=255_u8).filter(|byte| has_class(*byte, class)).count();
        assert_eq!(count(TOKEN), 77);
        assert_eq!(count(VALUE), 95 + 1 + 128);
        assert_eq!(count(QUOTED), 95 + 1 + 128 - 2);
    }

    proptest! {
        #[test]
        fn value_end_agrees_with_a_simple_loop(
            bytes in proptest::collection::vec(
                prop_oneof![8 => 0x20..0x7f_u8, 1 => Just(b'\t'), 1 => any::<u8>()], 0..60),
            from in 0..8_usize,
        ) {
            let from = from.min(bytes.len());
            let expected = (from..bytes.len())
                .find(|at| (bytes[*at] < 0x20 && bytes[*at] != 9) || bytes[*at] == 0x7f)
                .unwrap_or(bytes.len());
            prop_assert_eq!(value_end(&bytes, from), expected);
        }

        #[test]
        fn find_colon_agrees_with_a_simple_loop(
            bytes in proptest::collection::vec(
                prop_oneof![8 => 0x38..0x3d_u8, 1 => any::<u8>()], 0..40),
            from in 0..8_usize,
        ) {
            let from = from.min(bytes.len());
            let expected = (from..bytes.len()).find(|at| bytes[*at] == b':');
            prop_assert_eq!(find_colon(&bytes, from), expected);
        }
    }
}
