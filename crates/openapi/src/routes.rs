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
    file: OnceCell<StaticAsset>,
}

/// Content that does not change while the program runs.
#[derive(Clone, Debug)]
struct StaticAsset {
    media_type: &'static str,
    content: Bytes,
    tag: String,
}

impl StaticAsset {
    fn new(media_type: &'static str, content: impl Into<Bytes>) -> Self {
        let content = content.into();
        // The tag is the same in every instance of a program. It need not resist attempts to find
        // another document with the same tag.
        let mut hasher = DefaultHasher::new();
        hasher.write(&content);
        let tag = format!("\"{:016x}\"", hasher.finish());
        Self { media_type, content, tag }
    }

    fn respond(&self, conditions: &Preconditions) -> Response {
        let current = Validators::etag(&self.tag);
        let verdict = conditions.evaluate(current);
        if verdict == PreconditionOutcome::Failed {
            return precondition_failed(current).into_response();
        }
        let mut response = Response::new(StatusCode::OK).with_body(self.content.clone());
        response.headers.insert(CONTENT_TYPE, HeaderValue::from_static(self.media_type));
        if let Ok(tag) = HeaderValue::try_from(self.tag.as_str()) {
            response.headers.insert(ETAG, tag);
        }
        if verdict == PreconditionOutcome::NotModified {
            not_modified(&mut response);
        }
        response
    }
}

impl PublishedDocument {
    pub(crate) fn document(&self) -> Option<Rc<Document>> {
        self.0.get().map(|ready| Rc::clone(&ready.document))
    }

    fn set(&self, document: Document) {
        let _ = self.0.set(RenderedDocument { document: Rc::new(document), file: OnceCell::new() });
    }

    fn respond(&self, conditions: &Preconditions) -> Response {
        let Some(ready) = self.0.get() else { return StatusCode::NOT_FOUND.into_response() };
        let file = || StaticAsset::new("application/json", ready.document.to_json());
        ready.file.get_or_init(file).respond(conditions)
    }
}

impl RegisterRoutes for OpenApi {
    fn register(self, scope: &mut Scope) {
        RegisterRoutes::register(|scope: Scope| self.routes(scope), scope);
    }
}

impl OpenApi {
    fn routes(self, scope: Scope) -> Scope {
        let published = PublishedDocument::default();
        let answers = published.clone();
        let note = published.clone();
        let json = move |conditions: Preconditions| answers.respond(&conditions);
        let json = json.with_metadata(note).with_metadata(hidden());
        let scope = scope.get(&self.json_path, json);
        let scope = match &self.ui_path {
            Some(page_at) => self.ui_routes(scope, page_at),
            None => scope,
        };
        scope.on_build(move |application| {
            self.build_document(application).map(|document| published.set(document))
        })
    }

    fn ui_routes(&self, scope: Scope, page_at: &str) -> Scope {
        // If an application treats both paths as one, relative links on the page with a trailing
        // slash resolve differently.
        let [html, html_behind_slash] = [page_at.to_owned(), format!("{page_at}/")].map(|at| {
            let link = |to: &str| escape_html(&relative_url(&at, to));
            let html = HTML
                .replace("{{title}}", &escape_html(&self.title))
                .replace("{{style}}", &link(&format!("{page_at}/page.css")))
                .replace("{{script}}", &link(&format!("{page_at}/page.js")))
                .replace("{{document}}", &link(&self.json_path));
            StaticAsset::new("text/html; charset=utf-8", html)
        });
        let policy = HeaderValue::try_from(self.content_security_policy()).ok();
        let page = move |conditions: Preconditions, OriginalPath(path): OriginalPath| {
            let has_slash = path.len() > 1 && path.ends_with('/');
            let html = if has_slash { &html_behind_slash } else { &html };
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
        let at = if page_at.is_empty() { "/" } else { page_at };
        scope
            .get(at, page.with_metadata(hidden()))
            .get(&format!("{page_at}/page.css"), style.with_metadata(hidden()))
            .get(&format!("{page_at}/page.js"), script.with_metadata(hidden()))
    }

    /// The Content-Security-Policy: the page's own files, and requests to the API's servers.
    fn content_security_policy(&self) -> String {
        let servers =
            self.servers.iter().filter_map(|server| server.get("url").and_then(Value::as_str));
        let origins = servers.filter_map(|url| {
            let (scheme, rest) = url.split_once("://")?;
            let host = rest.split(['/', '?', '#']).next()?;
            let is_plain = |byte: u8| byte.is_ascii_alphanumeric() || b"-.:[]".contains(&byte);
            host.bytes().all(is_plain).then(|| format!(" {scheme}://{host}"))
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
    let same =
        folders.iter().zip(&target[..target.len() - 1]).take_while(|(one, two)| one == two).count();
    let up = "../".repeat(folders.len() - same);
    format!("{up}{}", target[same..].join("/"))
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
    fn one_path_is_seen_from_another() {
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
