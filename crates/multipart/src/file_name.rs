//! Safe file names.

/// The maximum length in bytes: the limit of file systems, minus room for an extension.
const BYTES_MAX: usize = 200;

/// Makes a file name from a client safe as the last component of a path; `None` if nothing is left.
///
/// Removes everything up to the last slash or backslash, control characters, characters with a
/// special meaning (`<>:"|?*`), and dots and spaces at both ends. Names of Windows devices get an
/// underscore as a prefix. The result has at most 200 bytes.
///
/// The name is not unique, and says nothing about the content. It is better to generate a name and
/// use this one only for display.
///
/// ```
/// use peregrine::multipart::sanitize_file_name;
///
/// assert_eq!(sanitize_file_name("../../etc/passwd").as_deref(), Some("passwd"));
/// assert_eq!(sanitize_file_name(r"C:\fakepath\wing.jpg").as_deref(), Some("wing.jpg"));
/// assert_eq!(sanitize_file_name("..").as_deref(), None);
/// ```
#[must_use]
pub fn sanitize_file_name(file_name: &str) -> Option<String> {
    let last = file_name.rsplit(['/', '\\']).next()?;
    let is_plain = |c: &char| !c.is_control() && !"<>:\"|?*".contains(*c);
    // Marks that change the text direction could make `gpj.exe` look like `exe.jpg`.
    let changes_direction = |c: &char| matches!(c, '\u{200e}'..='\u{200f}' | '\u{202a}'..='\u{202e}' | '\u{2066}'..='\u{2069}');
    let name: String = last.chars().filter(|c| is_plain(c) && !changes_direction(c)).collect();
    let name = &name[..name.floor_char_boundary(BYTES_MAX)];
    let name = name.trim_matches(|c: char| c == '.' || c.is_whitespace());
    if name.is_empty() {
        return None;
    }
    let stem = name.split('.').next().unwrap_or_default().trim_end();
    Some(if is_windows_device(stem) { format!("_{name}") } else { name.to_owned() })
}

/// Names that Windows opens as devices, whatever their extension.
fn is_windows_device(stem: &str) -> bool {
    let stem = stem.to_ascii_uppercase();
    let is_numbered = |prefix| {
        let number = stem.strip_prefix(prefix);
        number.is_some_and(|number| number.len() == 1 && number.as_bytes()[0].is_ascii_digit())
    };
    ["CON", "PRN", "AUX", "NUL"].contains(&&*stem) || is_numbered("COM") || is_numbered("LPT")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sanitized_names_are_safe_path_components() {
        for (name, expected) in [
            ("wing.jpg", Some("wing.jpg")),
            ("größe 1.txt", Some("größe 1.txt")),
            ("/etc/passwd", Some("passwd")),
            (r"..\..\boot.ini", Some("boot.ini")),
            (".bashrc", Some("bashrc")),
            ("a\0b\r\n.txt", Some("ab.txt")),
            ("a.txt. ", Some("a.txt")),
            ("file:stream", Some("filestream")),
            ("nul", Some("_nul")),
            ("COM7.txt", Some("_COM7.txt")),
            ("computer.txt", Some("computer.txt")),
            ("a\u{202e}gpj.exe", Some("agpj.exe")),
            ("a/", None),
            ("", None),
            ("...", None),
        ] {
            assert_eq!(sanitize_file_name(name).as_deref(), expected, "{name:?}");
        }
        let long = sanitize_file_name(&"ü".repeat(500)).expect("some characters are left");
        assert!(long.len() <= BYTES_MAX && long.chars().all(|c| c == 'ü'));
    }
}
