//! Slugs: the names of articles in URLs.

/// Names that are taken by other routes: `/articles/feed` is not an article.
const RESERVED: [&str; 1] = ["feed"];
/// Longer titles are truncated.
const CHARS_MAX: usize = 80;

/// The title in lower case, with hyphens in place of everything but letters and digits.
pub(super) fn of_title(title: &str) -> String {
    let mut slug = String::new();
    for char in title.chars().flat_map(char::to_lowercase).take(CHARS_MAX) {
        if char.is_alphanumeric() {
            slug.push(char);
        } else if !slug.is_empty() && !slug.ends_with('-') {
            slug.push('-');
        }
    }
    let end = slug.trim_end_matches('-').len();
    slug.truncate(end);
    if slug.is_empty() || RESERVED.contains(&&*slug) {
        format!("article-{slug}").trim_end_matches('-').to_owned()
    } else {
        slug
    }
}

/// The slug with a suffix, for when another article has the plain one.
pub(super) fn with_suffix(slug: &str, suffix: u32) -> String {
    format!("{slug}-{suffix:08x}")
}

/// Whether the slug was derived from this title.
pub(super) fn is_of_title(slug: &str, title: &str) -> bool {
    let plain = of_title(title);
    let rest = slug.strip_prefix(&*plain);
    rest.is_some_and(|rest| {
        let suffix = rest.strip_prefix('-').unwrap_or_default();
        rest.is_empty()
            || (suffix.len() == 8 && suffix.bytes().all(|byte| byte.is_ascii_hexdigit()))
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_slug_says_the_title_and_is_never_another_route() {
        for (title, slug) in [
            ("How to train your dragon", "how-to-train-your-dragon"),
            ("  Ünïcode -- & more! ", "ünïcode-more"),
            ("!!!", "article"),
            ("Feed", "article-feed"),
            ("../../etc", "etc"),
        ] {
            assert_eq!(of_title(title), slug);
            assert!(is_of_title(slug, title) && is_of_title(&with_suffix(slug, 7), title));
        }
        assert!(!is_of_title("how-to-train", "How to"));
        assert_eq!(of_title(&"x".repeat(500)).len(), CHARS_MAX);
    }
}
