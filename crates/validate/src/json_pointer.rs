//! Converts garde's paths of Rust names to JSON pointers of the client's names.

use garde::Path;
use serde_json::Value;
use std::borrow::Cow;
use std::collections::HashMap;
use std::fmt::Write;

/// The shape that serde requested at one place of a document, and the data at that place.
#[derive(Debug, Default)]
pub(crate) enum Shape {
    /// A value without parts, or one that was not inspected.
    #[default]
    Leaf,
    /// A struct: its serde name, the names of all its fields, and those that were sent.
    Struct { name: &'static str, fields: &'static [&'static str], sent: Vec<(String, Shape)> },
    /// An object for which serde does not state the possible names.
    Map(Vec<(String, Shape)>),
    /// A list.
    List(Vec<Shape>),
    /// An enum variant, inside an object with its name.
    Variant(String, Box<Shape>),
    /// Fields of a form. Flattened structs leave no trace.
    Fields,
}

/// Client names of fields that cannot be derived from the Rust names. Set it as the application's
/// state with `.state(names)`.
///
/// ```
/// use peregrine::prelude::*;
/// use garde::Validate;
/// use peregrine::validate::{FieldNames, Valid};
///
/// #[derive(serde::Deserialize, Validate)]
/// struct Bird {
///     #[serde(rename = "type")]
///     #[garde(length(min = 3))]
///     kind: String,
/// }
///
/// async fn add(_: Valid<Json<Bird>>) {}
///
/// let names = FieldNames::new().rename("Bird", "kind", "type");
/// let client = App::new().state(names).post("/birds", add).test();
/// let request = client.post("/birds").header("content-type", "application/json");
/// let response = request.body(r#"{"type":"x"}"#).send_blocking();
/// assert!(response.text().contains(r#""pointer":"/type""#));
/// ```
#[derive(Clone, Debug, Default)]
pub struct FieldNames(HashMap<(Cow<'static, str>, Cow<'static, str>), Cow<'static, str>>);

impl FieldNames {
    /// Creates an empty list of names.
    #[must_use]
    pub fn new() -> Self {
        Self::default()
    }

    /// Declares that clients send the Rust field `field` of the struct `struct_name` as
    /// `client_name`. If serde renames the struct, `struct_name` is the serde name.
    #[must_use]
    pub fn rename(
        mut self,
        struct_name: impl Into<Cow<'static, str>>,
        field: impl Into<Cow<'static, str>>,
        client_name: impl Into<Cow<'static, str>>,
    ) -> Self {
        self.0.insert((struct_name.into(), field.into()), client_name.into());
        self
    }

    fn get(&self, struct_name: &'static str, field: &str) -> Option<&str> {
        self.0.get(&(struct_name.into(), field.to_owned().into())).map(|client_name| &**client_name)
    }
}

/// Builds the pointer to the value at `path`. If the client's name of a field is unknown, the
/// pointer stops before that field, whose Rust name is returned too.
pub(crate) fn json_pointer(
    path: &Path,
    shape: &Shape,
    names: Option<&FieldNames>,
) -> (String, Option<String>) {
    let (mut pointer, mut shape) = (String::new(), shape);
    let components = components(path);
    for (position, (kind, component)) in components.iter().enumerate() {
        while let Shape::Variant(name, inner) = shape {
            push_segment(&mut pointer, name);
            shape = inner;
        }
        let is_last = position + 1 == components.len();
        shape = match (kind, shape) {
            (ComponentKind::None, _) => shape,
            (ComponentKind::Index, Shape::List(items)) => {
                push_segment(&mut pointer, component);
                let index: Option<usize> = component.parse().ok();
                index.and_then(|index| items.get(index)).unwrap_or(&LEAF)
            }
            // garde reports a numeric key as an index.
            (ComponentKind::Index, Shape::Map(sent))
                if sent.iter().any(|(name, _)| name == component) =>
            {
                push_segment(&mut pointer, component);
                child(sent, component)
            }
            // In a form, an index selects one of several fields with the same name.
            (ComponentKind::Index, Shape::Fields) => {
                push_segment(&mut pointer, component);
                shape
            }
            // serde reads a newtype as its value; garde calls that value its first field.
            (ComponentKind::Index, _) => shape,
            (ComponentKind::Key, Shape::Struct { name, fields, sent }) => {
                let configured = names.and_then(|names| names.get(name, component));
                let Some(client_name) =
                    configured.or_else(|| match_field_name(component, fields.iter().copied()))
                else {
                    warn_unknown_field(name, component);
                    return (pointer, Some(component.clone()));
                };
                push_segment(&mut pointer, client_name);
                child(sent, client_name)
            }
            (ComponentKind::Key, Shape::Map(sent)) => {
                match match_field_name(component, sent.iter().map(|(name, _)| &**name)) {
                    Some(client_name) => {
                        push_segment(&mut pointer, client_name);
                        child(sent, client_name)
                    }
                    // A flattened struct has no name in the document, and the client's name of a
                    // field that was not sent is unknown.
                    None if is_last => return (pointer, Some(component.clone())),
                    None => shape,
                }
            }
            (
                ComponentKind::Key,
                Shape::Fields | Shape::List(_) | Shape::Leaf | Shape::Variant(..),
            ) => {
                return (pointer, Some(component.clone()));
            }
        };
    }
    (pointer, None)
}

/// The kind of a path component.
#[derive(Clone, Copy)]
enum ComponentKind {
    /// The only value in a container, without a name.
    None,
    Index,
    Key,
}

/// Returns the components of a path, outermost first. garde reveals them only through serde.
fn components(path: &Path) -> Vec<(ComponentKind, String)> {
    let Ok(Value::Array(components)) = serde_json::to_value(path) else { return Vec::new() };
    let component = |component: &Value| {
        let kind = match component.get(0)?.as_str()? {
            "none" => ComponentKind::None,
            "index" => ComponentKind::Index,
            _ => ComponentKind::Key,
        };
        Some((kind, component.get(1)?.as_str()?.to_owned()))
    };
    components.iter().filter_map(component).collect()
}

const LEAF: Shape = Shape::Leaf;

fn child<'s>(sent: &'s [(String, Shape)], name: &str) -> &'s Shape {
    sent.iter().find(|(sent_name, _)| sent_name == name).map_or(&LEAF, |(_, shape)| shape)
}

/// RFC 6901, section 3: `~` and `/` are written `~0` and `~1`.
fn push_segment(pointer: &mut String, name: &str) {
    pointer.push('/');
    for letter in name.chars() {
        match letter {
            '~' => pointer.push_str("~0"),
            '/' => pointer.push_str("~1"),
            _ => pointer.push(letter),
        }
    }
}

/// Finds the name that matches a Rust field: the equal one, or the only one with the same letters
/// and digits.
fn match_field_name<'n>(
    field: &str,
    names: impl Iterator<Item = &'n str> + Clone,
) -> Option<&'n str> {
    if let Some(equal) = names.clone().find(|name| *name == field) {
        return Some(equal);
    }
    let letters = |name: &str| -> String {
        let alphanumeric = name.chars().filter(|letter| letter.is_alphanumeric());
        alphanumeric.flat_map(char::to_lowercase).collect()
    };
    let field_letters = letters(field);
    let mut matches = names.filter(|name| letters(name) == field_letters);
    let name = matches.next()?;
    matches.next().is_none().then_some(name)
}

#[cold]
fn warn_unknown_field(struct_name: &str, field: &str) {
    let mut fix = String::new();
    let _ = write!(fix, ".state(FieldNames::new().rename({struct_name:?}, {field:?}, ..))");
    tracing::warn!(
        target: "peregrine", of = struct_name, field, fix,
        "a field breaks a rule, and none of the names that serde expects matches its Rust name",
    );
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_field_name_matches_every_renaming_style_of_serde() {
        let forms = [
            "user_id", "USERID", "userid", "UserId", "userId", "USER_ID", "user-id", "USER-ID",
            "@user.id",
        ];
        for form in forms {
            assert_eq!(match_field_name("user_id", ["other", form].into_iter()), Some(form));
        }
        assert_eq!(match_field_name("user_id", ["userId", "user_id"].into_iter()), Some("user_id"));
        assert_eq!(
            match_field_name("user_id", ["userId", "user-id"].into_iter()),
            None,
            "the name is ambiguous"
        );
        assert_eq!(match_field_name("kind", ["type"].into_iter()), None);
    }
}
