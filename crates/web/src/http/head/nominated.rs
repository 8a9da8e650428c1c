//! Fields that the client names in `Connection`, because they concern only that connection.
//!
//! RFC 9110 §7.6.1: a proxy removes them. A client must not be able to remove a field that this
//! server sets, so setting a field removes its name from `Connection`.

use super::{HeadBlock, RequestHead};
use peregrine_proto::{FieldIndex, KnownField, Span};

impl RequestHead {
    /// Removes the fields that `Connection` names, and removes these names from `Connection`,
    /// whether or not such a field exists. Call it before code sets fields without
    /// [`RequestHead::append_header`]. Fields that frame the request are kept, and so are options
    /// that are not field names. Returns whether any name was removed.
    #[doc(hidden)]
    pub fn remove_nominated_headers(&mut self) -> bool {
        let names = self.nominated_names(|_| true);
        let has_names = !names.is_empty();
        if has_names {
            let names: Vec<&str> = names.iter().map(String::as_str).collect();
            self.remove_fields(&names);
            self.remove_connection_options(&names);
        }
        has_names
    }

    /// Keeps the fields that `Connection` names, and removes their names from `Connection`. Names
    /// without such a field stay. The client named them for the server that forwarded the request,
    /// and that server may have set them since.
    #[doc(hidden)]
    pub fn keep_nominated_headers(&mut self) {
        let names = self.nominated_names(|name| self.header_bytes(name).is_some());
        if !names.is_empty() {
            let names: Vec<&str> = names.iter().map(String::as_str).collect();
            self.remove_connection_options(&names);
        }
    }

    /// The names in `Connection` that may be field names and for which `is_included` returns true.
    fn nominated_names(&self, is_included: impl Fn(&str) -> bool) -> Vec<String> {
        let options = self.header_values("connection").flat_map(|list| list.split(|b| *b == b','));
        let options = options.filter_map(|option| std::str::from_utf8(option.trim_ascii()).ok());
        options
            .filter(|name| !name.is_empty() && !is_protected(name) && is_included(name))
            .map(str::to_owned)
            .collect()
    }

    /// Removes these names from `Connection`, except protected ones. If options remain in a list,
    /// each becomes a separate field, because the bytes of the head do not change.
    pub(super) fn remove_connection_options(&mut self, names: &[&str]) {
        let HeadBlock { bytes, index, .. } = self.block_mut();
        let is_named = |option: &[u8]| {
            names
                .iter()
                .any(|name| !is_protected(name) && option.eq_ignore_ascii_case(name.as_bytes()))
        };
        let mut retained = Vec::with_capacity(index.fields.len());
        for field in &index.fields {
            let value = bytes.get(usize::from(field.value.start)..usize::from(field.value.end));
            let value = value.unwrap_or_default();
            let mut options = value.split(|byte| *byte == b',').map(<[u8]>::trim_ascii);
            if field.known != KnownField::Connection || !options.any(is_named) {
                retained.push(*field);
                continue;
            }
            let mut start = field.value.start;
            for option in value.split(|byte| *byte == b',') {
                let end = start + len_u16(option);
                let span = Span {
                    start: end - len_u16(option.trim_ascii_start()),
                    end: start + len_u16(option.trim_ascii_end()),
                };
                if span.start < span.end && !is_named(option.trim_ascii()) {
                    retained.push(FieldIndex { value: span, ..*field });
                }
                // The next option starts after the comma.
                start = end.saturating_add(1);
            }
        }
        index.fields = retained;
        // Keeps all fields: `retain` also updates the set of known names that are present.
        index.retain(|_| true);
    }
}

fn len_u16(part: &[u8]) -> u16 {
    u16::try_from(part.len()).expect("offsets in a head fit into 16 bits")
}

/// Whether `name` is the option `close`, which is not a field name, or a field that no option may
/// remove: one that frames the request, determines where it goes, or concerns only the connection
/// anyway.
fn is_protected(name: &str) -> bool {
    let is_protected_other =
        ["close", "http2-settings"].iter().any(|option| name.eq_ignore_ascii_case(option));
    let is_protected_known = matches!(
        KnownField::from_name(name.as_bytes()),
        KnownField::Connection
            | KnownField::ContentLength
            | KnownField::Expect
            | KnownField::Host
            | KnownField::KeepAlive
            | KnownField::Te
            | KnownField::TransferEncoding
            | KnownField::Upgrade
    );
    is_protected_other || is_protected_known
}

#[cfg(test)]
mod tests {
    use crate::RequestHead;
    use peregrine_proto::{Limits, Method, RequestLine, Version};

    fn head(connection: &[&str]) -> RequestHead {
        let line = RequestLine {
            method: Method::Post.name().unwrap_or_default().as_bytes(),
            scheme: None,
            authority: b"",
            target: b"/",
            version: Version::Http11,
        };
        let fields = [
            (&b"Host"[..], &b"a"[..]),
            (b"Content-Length", b"0"),
            (b"X-User", b"theirs"),
            (b"X-Other", b"1"),
        ];
        let connection = connection.iter().map(|value| (&b"Connection"[..], value.as_bytes()));
        RequestHead::build(&Limits::default(), &line, connection.chain(fields)).unwrap()
    }

    fn options(head: &RequestHead) -> String {
        let options = head.header_values("connection").map(String::from_utf8_lossy);
        options.collect::<Vec<_>>().join("|")
    }

    #[test]
    fn appending_a_header_removes_its_name_from_connection() {
        let cases: [(&[&str], &str); 7] = [
            (&["X-User"], ""),
            (&["close, x-user"], "close"),
            (&[" X-USER ,, close ,x-other "], "close|x-other"),
            (&["close", "x-user,upgrade"], "close|upgrade"),
            (&["x-user,x-user", "X-User"], ""),
            (&["x-users, x-use"], "x-users, x-use"),
            (&["close"], "close"),
        ];
        for (connection, expected) in cases {
            let mut head = head(connection);
            head.remove_fields(&["x-user"]);
            assert!(head.append_header("x-user", b"ours"));
            assert_eq!(options(&head), expected, "{connection:?}");
            assert_eq!(head.header_bytes("x-user"), Some(&b"ours"[..]));
        }
        // Protected options are kept.
        let mut head = head(&["upgrade, te"]);
        head.append_header("te", b"trailers");
        head.append_header("upgrade", b"websocket");
        assert_eq!(options(&head), "upgrade, te");
    }

    #[test]
    fn a_header_for_which_there_is_no_room_keeps_its_name_in_connection() {
        let mut head = head(&["close, x-user"]);
        assert!(head.append_header("x-padding", &[b'a'; 65_000]));
        assert!(!head.append_header("x-user", &[b'a'; 1000]));
        assert_eq!(options(&head), "close, x-user");
        assert_eq!(head.header_bytes("x-user"), Some(&b"theirs"[..]));
    }

    #[test]
    fn nominated_headers_can_be_removed_or_kept_except_framing_headers() {
        let named = "close, X-User, host, content-length, transfer-encoding, x-none, expect";
        let expected = "close|host|content-length|transfer-encoding|expect";
        let mut removed = head(&[named]);
        removed.remove_nominated_headers();
        assert_eq!(options(&removed), expected);
        assert_eq!(removed.header_bytes("x-user"), None);
        let mut kept = head(&[named]);
        kept.keep_nominated_headers();
        assert_eq!(options(&kept), expected.replace("|expect", "|x-none|expect"));
        assert_eq!(kept.header_bytes("x-user"), Some(&b"theirs"[..]));
        for head in [removed, kept] {
            assert_eq!(head.header_bytes("host"), Some(&b"a"[..]));
            assert_eq!(head.header_bytes("content-length"), Some(&b"0"[..]));
            assert_eq!(head.header_bytes("x-other"), Some(&b"1"[..]));
        }
    }
}
