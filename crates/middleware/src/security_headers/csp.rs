//! Content security policies.

use super::nonce::CspNonce;
use http::HeaderValue;
use std::fmt::Write as _;

/// A placeholder for the [`CspNonce`] of the response.
pub const NONCE: &str = "'nonce'";

/// The maximum length of a policy, in bytes: many proxies reject response heads of more than 8 KiB.
const BYTES_MAX: usize = 4096;

/// Keywords, which are written with quotes.
const KEYWORDS: [&str; 9] = [
    "self",
    "none",
    "unsafe-inline",
    "unsafe-eval",
    "wasm-unsafe-eval",
    "strict-dynamic",
    "unsafe-hashes",
    "report-sample",
    "nonce",
];

/// A content security policy: which resources a page may load and run, and which pages may frame
/// it.
///
/// ```
/// use peregrine::middleware::{CspNonce, SecurityHeaders};
/// use peregrine::middleware::security_headers::{Csp, NONCE};
/// use peregrine::App;
/// use peregrine::web::response::Html;
///
/// async fn page(nonce: CspNonce) -> Html<String> {
///     Html(format!("<script nonce=\"{nonce}\">hello()</script>"))
/// }
///
/// let csp = Csp::new()
///     .default_src(["'self'"])
///     .script_src(["'self'", NONCE])
///     .img_src(["'self'", "data:"]);
/// let client = App::new().wrap(SecurityHeaders::new().csp(csp)).get("/", page).test();
/// let response = client.get("/").send_blocking();
/// let policy = response.header("content-security-policy").unwrap();
/// assert!(policy.starts_with("default-src 'self'; script-src 'self' 'nonce-"), "{policy}");
/// ```
///
/// Sources are written as in the standard: keywords with their quotes, `'self'`. Errors are
/// reported when the application is built. [`NONCE`] stands for the nonce of the response if its
/// handler used one ([`CspNonce`]), otherwise it is omitted.
#[doc(alias = "ContentSecurityPolicy")]
#[derive(Clone, Debug, Default)]
#[must_use]
pub struct Csp {
    directives: Vec<(String, Vec<String>)>,
    pub(super) is_report_only: bool,
    pub(super) config_errors: Vec<String>,
}

macro_rules! directives {
    ($($function:ident $name:literal $what:literal)*) => {
        $(
            #[doc = concat!("`", $name, "`: ", $what)]
            pub fn $function<T: AsRef<str>>(self, sources: impl IntoIterator<Item = T>) -> Self {
                self.directive($name, sources)
            }
        )*
    };
}

impl Csp {
    /// Creates a policy without restrictions.
    pub fn new() -> Self {
        Self::default()
    }

    /// The policy recommended for pages with their own scripts: only scripts with the nonce run,
    /// and those that they load; no plugins, and no `<base>`.
    pub fn strict() -> Self {
        Self::new()
            .script_src([NONCE, "'strict-dynamic'"])
            .object_src(["'none'"])
            .base_uri(["'none'"])
    }

    directives! {
        default_src "default-src" "for everything without a separate directive."
        script_src "script-src" "scripts."
        style_src "style-src" "style sheets."
        img_src "img-src" "images."
        font_src "font-src" "fonts."
        connect_src "connect-src" "connections of scripts."
        media_src "media-src" "sound and video."
        object_src "object-src" "plugins."
        frame_src "frame-src" "frames in the page."
        worker_src "worker-src" "workers."
        manifest_src "manifest-src" "manifests of applications."
        base_uri "base-uri" "the address in `<base>`."
        form_action "form-action" "targets of forms."
        frame_ancestors "frame-ancestors" "pages that may frame this one, instead of [`SecurityHeaders::frame_ancestors`](super::SecurityHeaders::frame_ancestors)."
    }

    /// Upgrades requests for `http:` to `https:`.
    pub fn upgrade_insecure_requests(self) -> Self {
        self.directive("upgrade-insecure-requests", [""; 0])
    }

    /// Sets where browsers report violations: the name of an endpoint of the field
    /// `Reporting-Endpoints`.
    pub fn report_to(self, endpoint: &str) -> Self {
        self.directive("report-to", [endpoint])
    }

    /// Makes browsers report violations without blocking anything, to try out a policy.
    pub fn report_only(mut self) -> Self {
        self.is_report_only = true;
        self
    }

    /// Adds a directive of any name. If it already exists, the sources are added to it.
    pub fn directive<T: AsRef<str>>(
        mut self,
        name: &str,
        sources: impl IntoIterator<Item = T>,
    ) -> Self {
        let is_valid =
            !name.is_empty() && name.bytes().all(|byte| byte.is_ascii_lowercase() || byte == b'-');
        if !is_valid {
            self.config_errors.push(format!(
                "`{name}` is not a directive name: use lowercase letters and hyphens only"
            ));
        }
        let mut valid_sources = Vec::new();
        for source in sources {
            match validate_source(source.as_ref()) {
                Ok(()) => valid_sources.push(source.as_ref().to_owned()),
                Err(reason) => {
                    self.config_errors.push(format!("`{}` of {name}: {reason}", source.as_ref()))
                }
            }
        }
        match self.directives.iter_mut().find(|(other, _)| other == name) {
            Some((_, sources)) => sources.extend(valid_sources),
            None => self.directives.push((name.to_owned(), valid_sources)),
        }
        self
    }

    pub(super) fn has(&self, name: &str) -> bool {
        self.directives.iter().any(|(other, _)| other == name)
    }

    pub(super) fn has_nonce(&self) -> bool {
        self.directives.iter().any(|(_, sources)| sources.iter().any(|source| source == NONCE))
    }

    /// Returns the errors in the complete policy.
    pub(super) fn validate(&self) -> Vec<String> {
        let mut errors = self.config_errors.clone();
        for (name, sources) in &self.directives {
            if sources.len() > 1 && sources.iter().any(|source| source == "'none'") {
                errors.push(format!("{name} has 'none' beside other sources, so that 'none' has no effect; leave it out"));
            }
        }
        let length = self.text(None).len();
        if length > BYTES_MAX {
            errors.push(format!("the policy has {length} bytes; at most {BYTES_MAX} are allowed"));
        }
        errors
    }

    /// Renders the policy as a field value; `None` if it is empty.
    pub(super) fn value(&self, nonce: Option<&CspNonce>) -> Option<HeaderValue> {
        let text = self.text(nonce);
        // An invalid policy is reported when the application is built, so it never gets here.
        if text.is_empty() { None } else { HeaderValue::try_from(text).ok() }
    }

    fn text(&self, nonce: Option<&CspNonce>) -> String {
        let mut text = String::new();
        for (name, sources) in &self.directives {
            let separator = if text.is_empty() { "" } else { "; " };
            let _ = write!(text, "{separator}{name}");
            let before = text.len();
            for source in sources {
                let _ = match (source.as_str(), nonce) {
                    (NONCE, Some(nonce)) => write!(text, " 'nonce-{nonce}'"),
                    (NONCE, None) => Ok(()),
                    (source, _) => write!(text, " {source}"),
                };
            }
            if text.len() == before && !sources.is_empty() {
                // The only source was an unused nonce. Nothing is allowed, which `'none'` says
                // explicitly.
                text.push_str(" 'none'");
            }
        }
        text
    }
}

fn validate_source(source: &str) -> Result<(), &'static str> {
    if source.is_empty()
        || !source.bytes().all(|byte| byte.is_ascii_graphic() && byte != b';' && byte != b',')
    {
        return Err(
            "a source is ASCII text without spaces, commas and semicolons; give several sources one by one",
        );
    }
    let is_keyword = |text: &str| KEYWORDS.iter().any(|keyword| text.eq_ignore_ascii_case(keyword));
    if is_keyword(source) {
        return Err("keywords have quotes: `'self'`, not `self`");
    }
    let quoted = source.strip_prefix('\'').and_then(|rest| rest.strip_suffix('\''));
    let Some(quoted) = quoted else {
        return if source.contains('\'') { Err("a quote is not closed") } else { Ok(()) };
    };
    if quoted.get(..6).is_some_and(|start| start.eq_ignore_ascii_case("nonce-")) {
        return Err("a constant nonce gives no protection; use NONCE");
    }
    let is_hash = ["sha256-", "sha384-", "sha512-"].iter().any(|start| quoted.starts_with(start));
    // The last two belong to the directives for trusted types.
    let is_known =
        is_keyword(quoted) || is_hash || quoted == "script" || quoted == "allow-duplicates";
    is_known.then_some(()).ok_or("this is not a keyword, and other sources have no quotes")
}
