//! The routes that serve the document and the page that displays it.

use crate::document::Document;
use crate::openapi::OpenApi;
use crate::operation_handler::hidden;
use bytes::Bytes;
use http::header::{CONTENT_SECURITY_POLICY, CONTENT_TYPE, ETAG};
use http::{HeaderValue, StatusCode};
use peregrine_web::extract::{OriginalPath, Preconditions};
use peregrine_web::precondition::{
    PreconditionOutcome, Validators, not_modified, precondition_failed,
};
use peregrine_web::register::RegisterRoutes;
use peregrine_web::{HandlerExt, IntoResponse, Response, Scope};
use serde_json::Value;
use std::cell::OnceCell;
use std::hash::{DefaultHasher, Hasher};
use std::rc::Rc;

const HTML: &str = include_str!("page/page.html");
const STYLE: &str = include_str!("page/page.css");
const SCRIPT: &str = include_str!("page/page.js");

/// Route metadata that holds the document, which is created when the application is built.
#[derive(Clone, Debug, Default)]
pub(crate) struct PublishedDocument(Rc<OnceCell<RenderedDocument>>);

#[derive(Debug)]
struct RenderedDocument {
    document: Rc<Document>,
    /// The document as served, created on the first request.
    json: OnceCell<StaticAsset>,
}

/// Content that does not change while the program runs.
#[derive(Clone, Debug)]
struct StaticAsset {
    media_type: &'static str,
    content: Bytes,
    etag: String,
}

impl StaticAsset {
    fn new(media_type: &'static str, content: impl Into<Bytes>) -> Self {
        let content = content.into();
        // The tag must be the same in every instance of a program, so the hash has no random key.
        // It need not resist collision attacks, because the content is fixed.
        let mut hasher = DefaultHasher::new();
        hasher.write(&content);
        let etag = format!("\"{:016x}\"", hasher.finish());
        Self { media_type, content, etag }
    }

    fn respond(&self, conditions: &Preconditions) -> Response {
        let current = Validators::etag(&self.etag);
        let outcome = conditions.evaluate(current);
        if outcome == PreconditionOutcome::Failed {
            return precondition_failed(current).into_response();
        }
        let mut response = Response::new(StatusCode::OK).with_body(self.content.clone());
        response.headers.insert(CONTENT_TYPE, HeaderValue::from_static(self.media_type));
        if let Ok(etag) = HeaderValue::try_from(self.etag.as_str()) {
            response.headers.insert(ETAG, etag);
        }
        if outcome == PreconditionOutcome::NotModified {
            not_modified(&mut response);
        }
        response
    }
}

impl PublishedDocument {
    pub(crate) fn document(&self) -> Option<Rc<Document>> {
        self.0.get().map(|rendered| Rc::clone(&rendered.document))
    }

    fn set(&self, document: Document) {
        let _ = self.0.set(RenderedDocument { document: Rc::new(document), json: OnceCell::new() });
    }

    fn respond(&self, conditions: &Preconditions) -> Response {
        let Some(rendered) = self.0.get() else { return StatusCode::NOT_FOUND.into_response() };
        let to_json = || StaticAsset::new("application/json", rendered.document.to_json());
        rendered.json.get_or_init(to_json).respond(conditions)
    }
}

impl RegisterRoutes for OpenApi {
    fn register(self, scope: &mut Scope) {
        RegisterRoutes::register(|scope: Scope| self.add_routes(scope), scope);
    }
}

impl OpenApi {
    fn add_routes(self, scope: Scope) -> Scope {
        let published = PublishedDocument::default();
        let served = published.clone();
        let metadata = published.clone();
        let json = move |conditions: Preconditions| served.respond(&conditions);
        let json = json.with_metadata(metadata).with_metadata(hidden());
        let scope = scope.get(&self.json_path, json);
        let scope = match &self.ui_path {
            Some(page_path) => self.add_ui_routes(scope, page_path),
            None => scope,
        };
        scope.on_build(move |application| {
            self.build_document(application).map(|document| published.set(document))
        })
    }

    fn add_ui_routes(&self, scope: Scope, page_path: &str) -> Scope {
        // If an application treats both paths as one, relative links on the page with a trailing
        // slash resolve differently.
        let [html, html_with_slash] = [page_path.to_owned(), format!("{page_path}/")].map(|from| {
            let link = |to: &str| escape_html(&relative_url(&from, to));
            let html = HTML
                .replace("{{title}}", &escape_html(&self.title))
                .replace("{{style}}", &link(&format!("{page_path}/page.css")))
                .replace("{{script}}", &link(&format!("{page_path}/page.js")))
                .replace("{{document}}", &link(&self.json_path));
            StaticAsset::new("text/html; charset=utf-8", html)
        });
        let policy = HeaderValue::try_from(self.content_security_policy()).ok();
        let page = move |conditions: Preconditions, OriginalPath(path): OriginalPath| {
            let has_slash = path.len() > 1 && path.ends_with('/');
            let html = if has_slash { &html_with_slash } else { &html };
            let mut response = html.respond(&conditions);
            if let Some(policy) = &policy {
                response.headers.insert(CONTENT_SECURITY_POLICY, policy.clone());
            }
            response
        };
        let style = StaticAsset::new("text/css; charset=utf-8", STYLE);
        let script = StaticAsset::new("text/javascript; charset=utf-8", SCRIPT);
        let style = move |conditions: Preconditions| style.respond(&conditions);
        let script = move |conditions: Preconditions| script.respond(&conditions);
        let page_pattern = if page_path.is_empty() { "/" } else { page_path };
        scope
            .get(page_pattern, page.with_metadata(hidden()))
            .get(&format!("{page_path}/page.css"), style.with_metadata(hidden()))
            .get(&format!("{page_path}/page.js"), script.with_metadata(hidden()))
    }

    /// The Content-Security-Policy: the page's own files, and requests to the API's servers.
    fn content_security_policy(&self) -> String {
        let servers =
            self.servers.iter().filter_map(|server| server.get("url").and_then(Value::as_str));
        let origins = servers.filter_map(|url| {
            let (scheme, rest) = url.split_once("://")?;
            let host = rest.split(['/', '?', '#']).next()?;
            let is_safe = |byte: u8| byte.is_ascii_alphanumeric() || b"-.:[]".contains(&byte);
            host.bytes().all(is_safe).then(|| format!(" {scheme}://{host}"))
        });
        let origins: String = origins.collect();
        format!(
            "default-src 'none'; script-src 'self'; style-src 'self'; connect-src 'self'{origins}; \
             base-uri 'none'; form-action 'none'; frame-ancestors 'self'"
        )
    }
}

/// The relative path from `from` to `to`, which works below any prefix.
fn relative_url(from: &str, to: &str) -> String {
    let folders: Vec<&str> = from.split('/').collect();
    let folders = &folders[..folders.len() - 1];
    let target: Vec<&str> = to.split('/').collect();
    let common = folders
        .iter()
        .zip(&target[..target.len() - 1])
        .take_while(|(left, right)| left == right)
        .count();
    let up = "../".repeat(folders.len() - common);
    format!("{up}{}", target[common..].join("/"))
}

/// Escapes text for HTML, including attributes.
fn escape_html(text: &str) -> String {
    let text = text.replace('&', "&amp;").replace('<', "&lt;").replace('>', "&gt;");
    text.replace('"', "&quot;").replace('\'', "&#39;")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn builds_relative_urls() {
        for (from, to, expected) in [
            ("/docs", "/openapi.json", "openapi.json"),
            ("/api/docs", "/api/openapi.json", "openapi.json"),
            ("/api/docs", "/openapi.json", "../openapi.json"),
            ("/docs", "/v1/openapi.json", "v1/openapi.json"),
            ("", "/openapi.json", "/openapi.json"),
        ] {
            assert_eq!(relative_url(from, to), expected, "{from} {to}");
        }
    }
}
