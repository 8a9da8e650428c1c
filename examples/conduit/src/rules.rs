//! Validation rules beyond those of `garde`, and a deserializer for optional fields.

use serde::{Deserialize, Deserializer};

/// Longer passwords are not safer and take longer to hash.
const PASSWORD_BYTES_MAX: usize = 256;
const PASSWORD_CHARS_MIN: usize = 8;

/// A text with at least one visible character.
pub(crate) fn not_blank(text: &str, (): &()) -> garde::Result {
    if text.trim().is_empty() { Err(garde::Error::new("can't be blank")) } else { Ok(()) }
}

/// A name that can be a path segment, without invisible characters at its ends.
pub(crate) fn is_username(name: &str, (): &()) -> garde::Result {
    if name.is_empty() {
        return Err(garde::Error::new("can't be blank"));
    }
    // These path segments cannot be reached: they stand for folders.
    if matches!(name, "." | "..") {
        return Err(garde::Error::new("must not be `.` or `..`"));
    }
    if name.trim() != name || name.chars().any(|char| char.is_control() || char == '/') {
        return Err(garde::Error::new("must not have slashes, or spaces at its ends"));
    }
    Ok(())
}

/// Finds typing errors. Only sending a message can show whether the address exists.
pub(crate) fn is_email(address: &str, (): &()) -> garde::Result {
    if address.is_empty() {
        return Err(garde::Error::new("can't be blank"));
    }
    let has_gap = address.chars().any(|char| char.is_whitespace() || char.is_control());
    let is_address =
        address.rsplit_once('@').is_some_and(|(user, host)| !user.is_empty() && !host.is_empty());
    if has_gap || !is_address { Err(garde::Error::new("is not an email address")) } else { Ok(()) }
}

pub(crate) fn is_password(password: &str, (): &()) -> garde::Result {
    if password.is_empty() {
        return Err(garde::Error::new("can't be blank"));
    }
    if password.chars().count() < PASSWORD_CHARS_MIN {
        return Err(garde::Error::new(format!(
            "must have {PASSWORD_CHARS_MIN} characters or more"
        )));
    }
    if password.len() > PASSWORD_BYTES_MAX {
        return Err(garde::Error::new(format!("must have {PASSWORD_BYTES_MAX} bytes or less")));
    }
    Ok(())
}

/// The URL of a picture: on the web, or an upload. Other schemes could inject scripts into a page.
pub(crate) fn is_picture(url: &str, (): &()) -> garde::Result {
    let is_known = ["https://", "http://", "/uploads/"].iter().any(|start| url.starts_with(start));
    if url.is_empty() || is_known {
        Ok(())
    } else {
        Err(garde::Error::new("must be an https or http URL"))
    }
}

/// Reads a field that may be missing. If it is present, it must be a `T`, so `null` is an error
/// unless `T` allows it. For `deserialize_with`, together with `default`.
pub(crate) fn present<'de, T: Deserialize<'de>, D: Deserializer<'de>>(
    deserializer: D,
) -> Result<Option<T>, D::Error> {
    T::deserialize(deserializer).map(Some)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_rule_accepts_what_is_meant_and_refuses_the_rest() {
        for (rule, good, bad) in [
            (not_blank as fn(&str, &()) -> garde::Result, &["x", " x "][..], &["", "  ", "\n"][..]),
            (
                is_username,
                &["Jacob", "j.r.r tolkien", "李"],
                &["", " x", "x ", "a/b", "a\nb", ".", ".."],
            ),
            (is_email, &["a@b", "jake+x@jake.jake"], &["", "jake", "@b", "a@", "a b@c"]),
            (is_password, &["password", "öäüöäüöä"], &["", "1234567"]),
            (
                is_picture,
                &["", "https://x/y.png", "/uploads/a.png"],
                &["javascript:alert(1)", "x.png"],
            ),
        ] {
            assert!(good.iter().all(|text| rule(text, &()).is_ok()), "{good:?}");
            assert!(bad.iter().all(|text| rule(text, &()).is_err()), "{bad:?}");
        }
        assert!(is_password(&"x".repeat(257), &()).is_err());
    }
}
