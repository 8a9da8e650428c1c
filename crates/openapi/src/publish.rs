//! The routes that serve the document and the page that displays it.

use crate::document::Document;
use crate::handler::hidden;
use crate::openapi::OpenApi;
use bytes::Bytes;
use http::header::{CONTENT_SECURITY_POLICY, CONTENT_TYPE, ETAG};
use http::{HeaderValue, StatusCode};
use peregrine_web::extract::{OriginalPath, Preconditions};
use peregrine_web::precondition::{Validators, Verdict, failed, not_modified};
use peregrine_web::routed::Routed;
use peregrine_web::{HandlerExt, IntoResponse, Response, Scope};
use serde_json::Value;
use std::cell::OnceCell;
use std::hash::{DefaultHasher, Hasher};
use std::rc::Rc;

const HTML: &str = include_str!("page/page.html");
const STYLE: &str = include_str!("page/page.css");
const SCRIPT: &str = include_str!("page/page.js");

/// A route note that holds the document, which is created when the application is built.
#[derive(Clone, Debug, Default)]
pub(crate) struct Published(Rc<OnceCell<Ready>>);

#[derive(Debug)]
struct Ready {
    document: Rc<Document>,
    /// The document as served, created on the first request.
    file: OnceCell<File>,
}

/// Content that does not change while the program runs.
#[derive(Clone, Debug)]
struct File {
    media_type: &'static str,
    content: Bytes,
    tag: String,
}

impl File {
    fn new(media_type: &'static str, content: impl Into<Bytes>) -> Self {
        let content = content.into();
        // The tag is the same in every instance of a program. It need not resist attempts to find
        // another document with the same tag.
        let mut hasher = DefaultHasher::new();
        hasher.write(&content);
        let tag = format!("\"{:016x}\"", hasher.finish());
        Self { media_type, content, tag }
    }

    fn answer(&self, conditions: &Preconditions) -> Response {
        let current = Validators::tag(&self.tag);
        let verdict = conditions.judge(current);
        if verdict == Verdict::Failed {
            return failed(current).into_response();
        }
        let mut response = Response::new(StatusCode::OK).with_body(self.content.clone());
        response.fields.set(CONTENT_TYPE, HeaderValue::from_static(self.media_type));
        if let Ok(tag) = HeaderValue::try_from(self.tag.as_str()) {
            response.fields.set(ETAG, tag);
        }
        if verdict == Verdict::Known {
            not_modified(&mut response);
        }
        response
    }
}

impl Published {
    pub(crate) fn document(&self) -> Option<Rc<Document>> {
        self.0.get().map(|ready| Rc::clone(&ready.document))
    }

    fn set(&self, document: Document) {
        let _ = self.0.set(Ready { document: Rc::new(document), file: OnceCell::new() });
    }

    fn answer(&self, conditions: &Preconditions) -> Response {
        let Some(ready) = self.0.get() else { return StatusCode::NOT_FOUND.into_response() };
        let file = || File::new("application/json", ready.document.to_json());
        ready.file.get_or_init(file).answer(conditions)
    }
}

impl Routed for OpenApi {
    fn add_to(self, scope: &mut Scope) {
        Routed::add_to(|scope: Scope| self.routes(scope), scope);
    }
}

impl OpenApi {
    fn routes(self, scope: Scope) -> Scope {
        let published = Published::default();
        let answers = published.clone();
        let note = published.clone();
        let json = move |conditions: Preconditions| answers.answer(&conditions);
        let json = json.noted(note).noted(hidden());
        let scope = scope.get(&self.json_at, json);
        let scope = match &self.page_at {
            Some(page_at) => self.page(scope, page_at),
            None => scope,
        };
        scope.inspect(move |application| {
            self.document(application).map(|document| published.set(document))
        })
    }

    fn page(&self, scope: Scope, page_at: &str) -> Scope {
        // If an application treats both paths as one, relative links on the page with a trailing
        // slash resolve differently.
        let [html, html_behind_slash] = [page_at.to_owned(), format!("{page_at}/")].map(|at| {
            let link = |to: &str| escaped(&relative(&at, to));
            let html = HTML
                .replace("{{title}}", &escaped(&self.title))
                .replace("{{style}}", &link(&format!("{page_at}/page.css")))
                .replace("{{script}}", &link(&format!("{page_at}/page.js")))
                .replace("{{document}}", &link(&self.json_at));
            File::new("text/html; charset=utf-8", html)
        });
        let policy = HeaderValue::try_from(self.policy()).ok();
        let page = move |conditions: Preconditions, OriginalPath(path): OriginalPath| {
            let has_slash = path.len() > 1 && path.ends_with('/');
            let html = if has_slash { &html_behind_slash } else { &html };
            let mut response = html.answer(&conditions);
            if let Some(policy) = &policy {
                response.fields.set(CONTENT_SECURITY_POLICY, policy.clone());
            }
            response
        };
        let style = File::new("text/css; charset=utf-8", STYLE);
        let script = File::new("text/javascript; charset=utf-8", SCRIPT);
        let style = move |conditions: Preconditions| style.answer(&conditions);
        let script = move |conditions: Preconditions| script.answer(&conditions);
        let at = if page_at.is_empty() { "/" } else { page_at };
        scope
            .get(at, page.noted(hidden()))
            .get(&format!("{page_at}/page.css"), style.noted(hidden()))
            .get(&format!("{page_at}/page.js"), script.noted(hidden()))
    }

    /// The Content-Security-Policy: the page's own files, and requests to the API's servers.
    fn policy(&self) -> String {
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
fn relative(from: &str, to: &str) -> String {
    let folders: Vec<&str> = from.split('/').collect();
    let folders = &folders[..folders.len() - 1];
    let target: Vec<&str> = to.split('/').collect();
    let same =
        folders.iter().zip(&target[..target.len() - 1]).take_while(|(one, two)| one == two).count();
    let up = "../".repeat(folders.len() - same);
    format!("{up}{}", target[same..].join("/"))
}

/// Escapes text for HTML, including attributes.
fn escaped(text: &str) -> String {
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
            assert_eq!(relative(from, to), expected, "{from} {to}");
        }
    }
}
