//! The static table. RFC 7541 Appendix A.

use super::decode::{FieldInfo, NameClass};
use crate::KnownField;

/// The number of entries; the dynamic table's indices follow.
pub(super) const COUNT: u32 = 61;

/// An entry: name, value, and the properties of both.
pub(super) struct Entry {
    pub(super) name: &'static [u8],
    pub(super) value: &'static [u8],
    pub(super) info: FieldInfo,
}

/// The entry with an index from 1 to [`COUNT`].
#[inline]
pub(super) fn entry(index: u32) -> Option<&'static Entry> {
    ENTRIES.get((index as usize).wrapping_sub(1))
}

/// The index of the first entry with this name, or 0. `known` is the name's variant.
#[inline]
pub(super) fn find_name(known: KnownField, name: &[u8]) -> usize {
    match known {
        KnownField::AcceptCharset => 15,
        KnownField::AcceptEncoding => 16,
        KnownField::AcceptLanguage => 17,
        KnownField::Accept => 19,
        KnownField::Age => 21,
        KnownField::Authorization => 23,
        KnownField::CacheControl => 24,
        KnownField::ContentDisposition => 25,
        KnownField::ContentEncoding => 26,
        KnownField::ContentLanguage => 27,
        KnownField::ContentLength => 28,
        KnownField::ContentLocation => 29,
        KnownField::ContentRange => 30,
        KnownField::ContentType => 31,
        KnownField::Cookie => 32,
        KnownField::Date => 33,
        KnownField::Expect => 35,
        KnownField::From => 37,
        KnownField::Host => 38,
        KnownField::IfMatch => 39,
        KnownField::IfModifiedSince => 40,
        KnownField::IfNoneMatch => 41,
        KnownField::IfRange => 42,
        KnownField::IfUnmodifiedSince => 43,
        KnownField::MaxForwards => 47,
        KnownField::ProxyAuthorization => 49,
        KnownField::Range => 50,
        KnownField::Referer => 51,
        KnownField::SetCookie => 55,
        KnownField::TransferEncoding => 57,
        KnownField::UserAgent => 58,
        KnownField::Via => 60,
        KnownField::Other => match name {
            b"accept-ranges" => 18,
            b"access-control-allow-origin" => 20,
            b"allow" => 22,
            b"etag" => 34,
            b"expires" => 36,
            b"last-modified" => 44,
            b"link" => 45,
            b"location" => 46,
            b"proxy-authenticate" => 48,
            b"refresh" => 52,
            b"retry-after" => 53,
            b"server" => 54,
            b"strict-transport-security" => 56,
            b"vary" => 59,
            b"www-authenticate" => 61,
            _ => 0,
        },
        _ => 0,
    }
}

/// The index of a status, or 0.
#[inline]
pub(super) const fn find_status(status: u16) -> u8 {
    match status {
        200 => 8,
        204 => 9,
        206 => 10,
        304 => 11,
        400 => 12,
        404 => 13,
        500 => 14,
        _ => 0,
    }
}

macro_rules! entries {
    ($(($name:literal, $value:literal, $known:ident, $class:ident),)*) => {
        static ENTRIES: [Entry; COUNT as usize] = [$(Entry {
            name: $name.as_bytes(),
            value: $value.as_bytes(),
            info: FieldInfo {
                known: KnownField::$known,
                name: NameClass::$class,
                // The empty authority is the only value that is not valid for its field.
                value_is_valid: !matches!(NameClass::$class, NameClass::Authority),
            },
        },)*];
    };
}

entries! {
    (":authority", "", Other, Authority),
    (":method", "GET", Other, Method),
    (":method", "POST", Other, Method),
    (":path", "/", Other, Path),
    (":path", "/index.html", Other, Path),
    (":scheme", "http", Other, Scheme),
    (":scheme", "https", Other, Scheme),
    (":status", "200", Other, OtherPseudo),
    (":status", "204", Other, OtherPseudo),
    (":status", "206", Other, OtherPseudo),
    (":status", "304", Other, OtherPseudo),
    (":status", "400", Other, OtherPseudo),
    (":status", "404", Other, OtherPseudo),
    (":status", "500", Other, OtherPseudo),
    ("accept-charset", "", AcceptCharset, Field),
    ("accept-encoding", "gzip, deflate", AcceptEncoding, Field),
    ("accept-language", "", AcceptLanguage, Field),
    ("accept-ranges", "", Other, Field),
    ("accept", "", Accept, Field),
    ("access-control-allow-origin", "", Other, Field),
    ("age", "", Age, Field),
    ("allow", "", Other, Field),
    ("authorization", "", Authorization, Field),
    ("cache-control", "", CacheControl, Field),
    ("content-disposition", "", ContentDisposition, Field),
    ("content-encoding", "", ContentEncoding, Field),
    ("content-language", "", ContentLanguage, Field),
    ("content-length", "", ContentLength, Field),
    ("content-location", "", ContentLocation, Field),
    ("content-range", "", ContentRange, Field),
    ("content-type", "", ContentType, Field),
    ("cookie", "", Cookie, Field),
    ("date", "", Date, Field),
    ("etag", "", Other, Field),
    ("expect", "", Expect, Field),
    ("expires", "", Other, Field),
    ("from", "", From, Field),
    ("host", "", Host, Field),
    ("if-match", "", IfMatch, Field),
    ("if-modified-since", "", IfModifiedSince, Field),
    ("if-none-match", "", IfNoneMatch, Field),
    ("if-range", "", IfRange, Field),
    ("if-unmodified-since", "", IfUnmodifiedSince, Field),
    ("last-modified", "", Other, Field),
    ("link", "", Other, Field),
    ("location", "", Other, Field),
    ("max-forwards", "", MaxForwards, Field),
    ("proxy-authenticate", "", Other, Field),
    ("proxy-authorization", "", ProxyAuthorization, Field),
    ("range", "", Range, Field),
    ("referer", "", Referer, Field),
    ("refresh", "", Other, Field),
    ("retry-after", "", Other, Field),
    ("server", "", Other, Field),
    ("set-cookie", "", SetCookie, Field),
    ("strict-transport-security", "", Other, Field),
    ("transfer-encoding", "", TransferEncoding, Connection),
    ("user-agent", "", UserAgent, Field),
    ("vary", "", Other, Field),
    ("via", "", Via, Field),
    ("www-authenticate", "", Other, Field),
}

#[cfg(test)]
mod tests {
    use super::{COUNT, entry, find_name, find_status};
    use crate::h2::hpack::FieldInfo;

    #[test]
    fn every_entry_has_the_info_of_its_name_and_value() {
        for index in 1..=COUNT {
            let entry = entry(index).unwrap();
            assert_eq!(entry.info, FieldInfo::new(entry.name, entry.value));
        }
        assert!(entry(0).is_none() && entry(COUNT + 1).is_none());
    }

    #[test]
    fn find_name_and_find_status_return_the_index_of_the_entry() {
        for index in 1..=COUNT {
            let entry = entry(index).unwrap();
            if entry.name == b":status" {
                let status = std::str::from_utf8(entry.value).unwrap().parse().unwrap();
                assert_eq!(u32::from(find_status(status)), index);
            } else if entry.name[0] != b':' {
                assert_eq!(find_name(entry.info.known, entry.name), index as usize);
            }
        }
        assert_eq!(find_status(418), 0);
    }
}
