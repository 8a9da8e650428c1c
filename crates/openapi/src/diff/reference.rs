//! Resolves references.

use serde_json::Value;

/// The target of a reference within `document`, or the value itself.
pub(super) fn resolve_ref(document: &Value, value: &Value) -> Value {
    let mut value = value;
    // Chains of references are short, unless one refers to itself.
    for _ in 0..16 {
        let Some(reference) = value.get("$ref").and_then(Value::as_str) else { break };
        let Some(target) = ref_target(document, reference) else { break };
        value = target;
    }
    value.clone()
}

fn ref_target<'d>(document: &'d Value, reference: &str) -> Option<&'d Value> {
    document.pointer(&decode_fragment(reference.strip_prefix('#')?))
}

/// RFC 6901, section 6: a pointer in a fragment is percent-encoded.
fn decode_fragment(text: &str) -> String {
    let mut bytes = Vec::with_capacity(text.len());
    let mut rest = text.as_bytes();
    while let Some((first, after)) = rest.split_first() {
        let digit =
            |byte: &u8| char::from(*byte).to_digit(16).and_then(|digit| u8::try_from(digit).ok());
        let pair = after.first().and_then(digit).zip(after.get(1).and_then(digit));
        match pair.filter(|_| *first == b'%') {
            Some((high, low)) => {
                bytes.push(high << 4 | low);
                rest = &after[2..];
            }
            None => {
                bytes.push(*first);
                rest = after;
            }
        }
    }
    String::from_utf8_lossy(&bytes).into_owned()
}

/// A reference without a target in `document`, such as one to another file. Its target is unknown,
/// and [`diff`](super::diff) treats it as allowing anything.
#[must_use]
pub fn find_dangling_ref(document: &Value) -> Option<&str> {
    /// Members that contain arbitrary values, not schemas.
    const VALUES: [&str; 6] = ["const", "default", "enum", "example", "examples", "value"];
    let mut pending = vec![document];
    while let Some(value) = pending.pop() {
        match value {
            Value::Object(members) => {
                if let Some(Value::String(reference)) = members.get("$ref")
                    && ref_target(document, reference).is_none()
                {
                    return Some(reference);
                }
                let may_contain_schema =
                    |name: &str| !VALUES.contains(&name) && !name.starts_with("x-");
                let schema_members = members.iter().filter(|(name, _)| may_contain_schema(name));
                pending.extend(schema_members.map(|(_, member)| member));
            }
            Value::Array(items) => pending.extend(items),
            _ => {}
        }
    }
    None
}
