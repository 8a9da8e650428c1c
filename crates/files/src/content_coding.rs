//! Negotiation of precompressed files.

use peregrine_web::RequestHead;

/// A compression format. The order is the preference among formats with equal weights.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) enum ContentCoding {
    Brotli,
    Zstd,
    Gzip,
}

pub(crate) const ALL: [ContentCoding; 3] =
    [ContentCoding::Brotli, ContentCoding::Zstd, ContentCoding::Gzip];

impl ContentCoding {
    /// The name in HTTP.
    pub(crate) fn name(self) -> &'static str {
        match self {
            Self::Brotli => "br",
            Self::Zstd => "zstd",
            Self::Gzip => "gzip",
        }
    }

    /// The extension of files in this format.
    pub(crate) fn extension(self) -> &'static str {
        match self {
            Self::Brotli => ".br",
            Self::Zstd => ".zst",
            Self::Gzip => ".gz",
        }
    }

    fn matches(self, coding: &str) -> bool {
        let is_alias = self == Self::Gzip && coding.eq_ignore_ascii_case("x-gzip");
        is_alias || coding.eq_ignore_ascii_case(self.name())
    }
}

/// The formats that a client accepts, best first.
pub(crate) type AcceptedCodings = [Option<ContentCoding>; 3];

/// RFC 9110, section 12.5.3: without the field, any coding is acceptable. But a client that omits
/// the field is not a browser, so it gets uncompressed content, which every client understands.
pub(crate) fn negotiate(head: &RequestHead) -> AcceptedCodings {
    let mut qualities = [None; 3];
    let (mut wildcard, mut identity) = (0, None);
    for list in head.header_values("accept-encoding") {
        let Ok(list) = std::str::from_utf8(list) else { continue };
        for item in list.split(',') {
            let (coding, quality) = parse_element(item);
            if coding == "*" {
                wildcard = quality;
            } else if coding.eq_ignore_ascii_case("identity") {
                identity = Some(quality);
            } else if let Some(index) = ALL.iter().position(|encoding| encoding.matches(coding)) {
                qualities[index] = Some(quality);
            }
        }
    }
    // Clients that prefer uncompressed content get it.
    let quality_min = identity.unwrap_or_default().max(1);
    let quality = |index: usize| qualities[index].unwrap_or(wildcard);
    let mut order = [0, 1, 2];
    order.sort_by_key(|index| std::cmp::Reverse(quality(*index)));
    order.map(|index| (quality(index) >= quality_min).then_some(ALL[index]))
}

/// A coding and its weight, from 0 to 1,000.
fn parse_element(item: &str) -> (&str, u16) {
    let mut parts = item.split(';');
    let coding = parts.next().unwrap_or_default().trim_ascii();
    let weight = parts.find_map(|part| {
        let (name, value) = part.split_once('=')?;
        name.trim_ascii().eq_ignore_ascii_case("q").then(|| value.trim_ascii())
    });
    (coding, weight.map_or(1000, parse_qvalue))
}

/// RFC 9110, section 12.4.2: a weight has at most three decimal places. An invalid weight counts as
/// 0.
fn parse_qvalue(text: &str) -> u16 {
    let (integer, decimals) = text.split_once('.').unwrap_or((text, ""));
    let is_number = decimals.len() <= 3 && decimals.bytes().all(|byte| byte.is_ascii_digit());
    match integer {
        "1" if is_number => 1000,
        "0" if is_number => format!("{decimals:0<3}").parse().unwrap_or_default(),
        _ => 0,
    }
}

/// Whether files of this type may have compressed variants.
pub(crate) fn is_compressible(media_type: &str) -> bool {
    let (kind, subtype) = media_type.split_once('/').unwrap_or((media_type, ""));
    match kind {
        "text" | "font" | "model" => !subtype.starts_with("woff"),
        "image" => ["svg+xml", "x-icon", "bmp", "vnd.microsoft.icon"].contains(&subtype),
        "application" => {
            !["zip", "gzip", "zstd", "x-7z-compressed", "x-xz", "x-bzip2", "font-woff"]
                .contains(&subtype)
        }
        _ => false,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use peregrine_web::{App, Request};

    /// The formats accepted by a client that sends this field.
    fn accepted_by(field: Option<&str>) -> String {
        let handler = async |request: Request| {
            let accepted = negotiate(&request.parts.head);
            accepted.iter().flatten().map(|encoding| encoding.name()).collect::<Vec<_>>().join(" ")
        };
        let client = App::new().get("/", handler).test();
        let request = client.get("/");
        let request = match field {
            Some(field) => request.header("accept-encoding", field),
            None => request,
        };
        request.send_blocking().text()
    }

    #[test]
    fn orders_codings_by_weight_then_by_preference() {
        for (field, expected) in [
            (None, ""),
            (Some(""), ""),
            (Some("gzip, deflate, br, zstd"), "br zstd gzip"),
            (Some("GZIP;q=1.0, br;Q=0.5"), "gzip br"),
            (Some("*"), "br zstd gzip"),
            (Some("*;q=0.1, gzip"), "gzip br zstd"),
            (Some("br;q=0, *"), "zstd gzip"),
            (Some("x-gzip"), "gzip"),
            (Some("br;q=0.2, identity;q=0.5, gzip"), "gzip"),
            (Some("identity, gzip;q=0.5"), ""),
            (Some("br;q=2, gzip;q=0.001, zstd;q=x"), "gzip"),
        ] {
            assert_eq!(accepted_by(field), expected, "{field:?}");
        }
    }
}
