//! Permissions policies.

use http::HeaderValue;
use peregrine_web::origin::Origin;

/// The browser features that a page, and frames in it, may use: `Permissions-Policy`.
///
/// ```
/// use peregrine::middleware::security_headers::PermissionsPolicy;
///
/// let policy = PermissionsPolicy::new()
///     .deny("camera")
///     .deny("microphone")
///     .allow("geolocation", ["self"]);
/// # let _ = policy;
/// ```
#[derive(Clone, Debug, Default)]
#[must_use]
pub struct PermissionsPolicy {
    features: Vec<(String, String)>,
    pub(super) config_errors: Vec<String>,
}

impl PermissionsPolicy {
    /// Creates an empty policy.
    pub fn new() -> Self {
        Self::default()
    }

    /// Denies this feature to the page and to frames in it.
    pub fn deny(self, feature: &str) -> Self {
        self.allow(feature, [""; 0])
    }

    /// Allows this feature to these origins: `self`, `src`, origins such as
    /// `https://video.example`, or `*` for all.
    pub fn allow<T: AsRef<str>>(
        mut self,
        feature: &str,
        origins: impl IntoIterator<Item = T>,
    ) -> Self {
        let is_valid_byte =
            |byte: u8| byte.is_ascii_lowercase() || byte.is_ascii_digit() || byte == b'-';
        if feature.is_empty() || !feature.bytes().all(is_valid_byte) {
            self.config_errors.push(format!(
                "`{feature}` is not a feature name: use lowercase letters, digits and hyphens only"
            ));
        }
        let mut allowlist = Vec::new();
        for origin in origins {
            match origin.as_ref() {
                word @ ("self" | "src" | "*") => allowlist.push(word.to_owned()),
                // Browsers also accept an origin with a star in its host.
                text if Origin::parse(text).is_some() && text.bytes().all(|byte| byte.is_ascii_graphic() && byte != b'"' && byte != b'\\') => {
                    allowlist.push(format!("\"{text}\""));
                }
                text => self.config_errors.push(format!("`{text}` of {feature} is neither self, src, * nor an origin such as https://video.example")),
            }
        }
        let allowed = if allowlist.iter().any(|entry| entry == "*") {
            "*".to_owned()
        } else {
            format!("({})", allowlist.join(" "))
        };
        self.features.retain(|(other, _)| other != feature);
        self.features.push((feature.to_owned(), allowed));
        self
    }

    pub(super) fn value(&self) -> Option<HeaderValue> {
        let directives: Vec<_> =
            self.features.iter().map(|(name, allowed)| format!("{name}={allowed}")).collect();
        // An invalid policy is reported when the application is built, so it never gets here.
        if directives.is_empty() { None } else { HeaderValue::try_from(directives.join(", ")).ok() }
    }
}
