//! Negotiation of the content coding.

use crate::coding::ContentCoding;
use peregrine_web::RequestHead;

/// The result of the negotiation.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Negotiated {
    /// The best coding; `None` if the client accepts none of them, or prefers unencoded content.
    pub(crate) coding: Option<ContentCoding>,
    /// Whether unencoded content is acceptable.
    pub(crate) identity: bool,
}

/// A weight, in thousandths.
type Quality = u16;

/// The weights sent by the client.
#[derive(Default)]
struct AcceptEncoding {
    /// In the order of `ContentCoding::ALL`.
    codings: [Option<Quality>; 4],
    identity: Option<Quality>,
    wildcard: Option<Quality>,
}

/// Chooses a coding by the client's weights, and by the server's order if these are equal (RFC
/// 9110, section 12.5.3).
pub(crate) fn negotiate(head: &RequestHead, offered: &[ContentCoding]) -> Negotiated {
    let mut accept_encoding = AcceptEncoding::default();
    let mut is_present = false;
    for value in head.header_values("accept-encoding") {
        is_present = true;
        for element in value.split(|byte| *byte == b',') {
            accept_encoding.parse_element(element);
        }
    }
    // RFC 9110 §12.5.3: without the field, any coding may be sent, but the client may not support
    // any.
    if !is_present {
        return Negotiated { coding: None, identity: true };
    }
    let quality = |coding: ContentCoding| {
        let index = ContentCoding::ALL.iter().position(|other| *other == coding);
        index
            .and_then(|index| accept_encoding.codings[index])
            .or(accept_encoding.wildcard)
            .unwrap_or(0)
    };
    let mut best: Option<(ContentCoding, Quality)> = None;
    for coding in offered.iter().copied() {
        let quality = quality(coding);
        if quality > best.map_or(0, |(_, quality)| quality) {
            best = Some((coding, quality));
        }
    }
    // RFC 9110 §12.5.3: unencoded content is acceptable unless excluded by `identity;q=0`, or by
    // `*;q=0` without an element for identity.
    let identity = accept_encoding.identity.or(accept_encoding.wildcard);
    let is_better = |(_, quality): &(ContentCoding, Quality)| {
        identity.is_none_or(|identity| *quality >= identity)
    };
    let coding = best.filter(is_better).map(|(coding, _)| coding);
    Negotiated { coding, identity: identity != Some(0) }
}

impl AcceptEncoding {
    /// Parses and records one element. Invalid elements are ignored.
    fn parse_element(&mut self, element: &[u8]) {
        let mut parts = element.split(|byte| *byte == b';').map(<[u8]>::trim_ascii);
        let name = parts.next().unwrap_or_default();
        let mut quality = 1000;
        for parameter in parts {
            let value = match parameter {
                [b'q' | b'Q', b'=', value @ ..] => value,
                _ => return,
            };
            match parse_qvalue(value) {
                Some(value) => quality = value,
                None => return,
            }
        }
        let weight = match name {
            b"" => return,
            b"*" => &mut self.wildcard,
            name if name.eq_ignore_ascii_case(b"identity") => &mut self.identity,
            name => match ContentCoding::from_name(name)
                .and_then(|coding| ContentCoding::ALL.iter().position(|other| *other == coding))
            {
                Some(index) => &mut self.codings[index],
                None => return,
            },
        };
        // Of duplicates, the first applies.
        weight.get_or_insert(quality);
    }
}

/// RFC 9110, section 12.4.2: a weight has at most three decimal places and is at most 1.
fn parse_qvalue(text: &[u8]) -> Option<Quality> {
    let (integer, rest) = text.split_first()?;
    let digits = match rest {
        [] => &[][..],
        [b'.', digits @ ..] if digits.len() <= 3 && digits.iter().all(u8::is_ascii_digit) => digits,
        _ => return None,
    };
    let mut quality = match integer {
        b'0' => 0,
        b'1' => 1000,
        _ => return None,
    };
    for (digit, unit) in digits.iter().zip([100, 10, 1]) {
        quality += Quality::from(digit - b'0') * unit;
    }
    (quality <= 1000).then_some(quality)
}

#[cfg(all(test, feature = "br", feature = "deflate", feature = "gzip", feature = "zstd"))]
mod tests {
    use super::*;
    use peregrine_web::App;
    use peregrine_web::Request;

    fn negotiated(values: &[&str]) -> String {
        let handler = |request: Request| {
            let Negotiated { coding, identity } =
                negotiate(&request.parts.head, ContentCoding::ALL);
            format!(
                "{}{}",
                coding.map_or("-", ContentCoding::name),
                if identity { "" } else { "!" }
            )
        };
        let client = App::new().get("/", handler).test();
        let request = values
            .iter()
            .fold(client.get("/"), |request, value| request.header("accept-encoding", *value));
        request.send_blocking().text()
    }

    #[test]
    fn chooses_by_weight_then_by_server_order() {
        for (value, expected) in [
            ("", "-"),
            ("gzip", "gzip"),
            ("GZIP", "gzip"),
            ("x-gzip", "gzip"),
            ("deflate", "deflate"),
            ("gzip, deflate, br, zstd", "zstd"),
            ("gzip, deflate, br", "br"),
            ("gzip;q=1.0, br;q=0.9", "gzip"),
            ("gzip ; q=0.2 ,\tbr;Q=0.201", "br"),
            ("gzip;q=0", "-"),
            ("gzip;q=0.000", "-"),
            ("gzip;q=0, *", "zstd"),
            ("*", "zstd"),
            ("*;q=0.1, gzip;q=0.5", "gzip"),
            ("zstd;q=0, br;q=0, *;q=0.5", "gzip"),
            ("compress, exi", "-"),
            ("identity", "-"),
            ("identity, gzip", "gzip"),
            ("identity;q=1, gzip;q=0.5", "-"),
            ("identity;q=0.5, gzip;q=0.5", "gzip"),
            ("*;q=0.5, gzip;q=0.2, br;q=0, zstd;q=0, deflate;q=0", "-"),
            ("identity;q=0", "-!"),
            ("identity;q=0, gzip", "gzip!"),
            ("identity;q=0.0, br;q=0.001", "br!"),
            ("*;q=0", "-!"),
            ("*;q=0, gzip", "gzip!"),
            ("*;q=0, identity", "-"),
            ("*;q=0, identity;q=0.5, gzip;q=0.4", "-"),
            ("identity;q=0, *", "zstd!"),
            ("gzip, gzip;q=0", "gzip"),
            // Invalid elements are ignored.
            ("gzip;q=2", "-"),
            ("gzip;q=1.001", "-"),
            ("gzip;q=0.1234", "-"),
            ("gzip;q=-1", "-"),
            ("gzip;q=", "-"),
            ("gzip;q=1e0", "-"),
            ("gzip;level=9", "-"),
            ("gzip q=1", "-"),
            (";q=1,,=,\u{e9}, br", "br"),
        ] {
            assert_eq!(negotiated(&[value]), expected, "{value}");
        }
        assert_eq!(negotiated(&["gzip;q=0.5", "br"]), "br");
        assert_eq!(negotiated(&[]), "-");
        let many = "gzip;q=0.1, x, ".repeat(400);
        assert_eq!(negotiated(&[&many]), "gzip");
    }
}
