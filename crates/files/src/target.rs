//! Maps a request's path to a file path.

use percent_encoding::percent_decode;
use peregrine_web::Parts;

/// The requested file: a path of plain names below the directory.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(crate) struct FilePath {
    /// Names separated by slashes; empty for the directory itself.
    pub(crate) path: String,
    /// The request's path ends with a slash.
    pub(crate) is_dir: bool,
}

impl FilePath {
    /// The target of a request; `None` if its path cannot be that of a file.
    pub(crate) fn from_request(parts: &Parts, serves_hidden_files: bool) -> Option<Self> {
        let path = parts.head.path().as_bytes();
        let is_dir = path.ends_with(b"/");
        let raw =
            path_below_prefix(parts).unwrap_or_else(|| path.strip_prefix(b"/").unwrap_or(path));
        Self::parse(raw, is_dir, serves_hidden_files)
    }

    /// The target for a path from a handler; `None` unless all names are plain.
    pub(crate) fn from_path(path: &str, serves_hidden_files: bool) -> Option<Self> {
        let is_served =
            |name: &str| is_safe_component(name) && (serves_hidden_files || !name.starts_with('.'));
        let path = path.split('/').all(is_served).then(|| path.to_owned())?;
        Some(Self { path, is_dir: false })
    }

    /// Parses a percent-encoded path. Splits it before decoding, so that an encoded slash never
    /// separates names.
    pub(crate) fn parse(raw: &[u8], is_dir: bool, serves_hidden_files: bool) -> Option<Self> {
        let raw = raw.strip_suffix(b"/").filter(|raw| !raw.is_empty()).unwrap_or(raw);
        let mut path = String::with_capacity(raw.len());
        if raw.is_empty() {
            return Some(Self { path, is_dir });
        }
        for segment in raw.split(|byte| *byte == b'/') {
            let name = percent_decode(segment).decode_utf8().ok()?;
            if !is_safe_component(&name) || (name.starts_with('.') && !serves_hidden_files) {
                return None;
            }
            if !path.is_empty() {
                path.push('/');
            }
            path.push_str(&name);
        }
        Some(Self { path, is_dir })
    }
}

/// Whether a file with this name can be served. Windows gives more characters a special meaning,
/// and drops trailing dots and spaces.
fn is_safe_component(name: &str) -> bool {
    let is_forbidden = |c: char| c == '/' || c == '\\' || c.is_control();
    let is_windows = || {
        let has_trailing = name.ends_with(['.', ' ']);
        has_trailing || name.contains(['<', '>', ':', '"', '|', '?', '*'])
    };
    !(name.is_empty()
        || name == "."
        || name == ".."
        || name.contains(is_forbidden)
        || cfg!(windows) && is_windows())
}

/// Returns the path below the route's prefix; `None` if no route matched, so that the whole path is
/// that of the file.
fn path_below_prefix(parts: &Parts) -> Option<&[u8]> {
    let (_, last) = parts.pattern()?.rsplit_once('/')?;
    if !last.starts_with("{*") {
        // This is the prefix of a subtree itself.
        return Some(b"");
    }
    parts.path_parameters()?.iter().last().map(|(_, value)| value)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn parses_only_paths_of_plain_names() {
        for (raw, path) in [
            ("a/b.txt", Some("a/b.txt")),
            ("a/b/", Some("a/b")),
            ("", Some("")),
            ("/", None),
            ("/a", None),
            ("gr%C3%BC%20n", Some("grü n")),
            ("100%", Some("100%")),
            ("a//b", None),
            ("//a", None),
            ("..", None),
            ("a/../b", None),
            ("a/%2e%2E/b", None),
            ("%2e/a", None),
            ("a%2fb", None),
            ("a%5cb", None),
            ("..%5c..%5cb", None),
            ("a%00", None),
            ("a%0a", None),
            ("%ff", None),
            (".git/config", None),
            ("a/.env", None),
        ] {
            let target = FilePath::parse(raw.as_bytes(), false, false);
            assert_eq!(target.as_ref().map(|target| &*target.path), path, "{raw}");
        }
        let dot = FilePath::parse(b".well-known/x", false, true).expect("dot files are served");
        assert_eq!(dot.path, ".well-known/x");
        assert_eq!(FilePath::parse(b"a/../b", false, true), None);
    }
}
