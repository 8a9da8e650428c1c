//! Certificates through ACME while the server runs: starts the threads that obtain them, and
//! answers the HTTP requests with which the certificate authority validates domain names.

use crate::error::Error;
use crate::runtime::handle::Handle;
use crate::runtime::make_app::{Make, Making};
use http::Method;
use http::header::CONTENT_TYPE;
pub use peregrine_acme::*;
use peregrine_server::Order;
use peregrine_tls::{Challenges, Tls};
use peregrine_web::application::{Application, Claim};
use peregrine_web::head::Head;
use peregrine_web::{IntoResponse, Request, Response, Service};
use std::sync::Arc;
use std::time::Duration;
use tokio::time::timeout;

impl From<AcmeError> for Error {
    fn from(error: AcmeError) -> Self {
        match error {
            AcmeError::Tls(error) => Self::Tls(error),
            error => Self::Config(error.to_string()),
        }
    }
}

/// The ACME clients of a server that has not started yet, and the challenges that they answer.
pub(crate) struct Suppliers {
    suppliers: Vec<Supplier>,
    answers: Arc<[Arc<Challenges>]>,
}

impl Suppliers {
    pub(crate) fn of<'t>(all: impl Iterator<Item = &'t Tls>) -> Self {
        let suppliers = Supplier::of(all);
        let answers = suppliers.iter().map(Supplier::challenges).collect();
        Self { suppliers, answers }
    }

    /// Wraps the applications of `makes` so that they answer validation requests before any route.
    pub(crate) fn answering<'m>(
        &self,
        makes: &'m mut dyn FnMut() -> Make,
    ) -> Box<dyn FnMut() -> Make + 'm> {
        if self.answers.is_empty() {
            return Box::new(makes);
        }
        let answers = Arc::clone(&self.answers);
        Box::new(move || {
            let (make, answers) = (makes(), Arc::clone(&answers));
            Box::new(move || -> Making {
                let making = make();
                Box::pin(async move { Ok(answer_first(making.await?, answers)) })
            })
        })
    }

    /// Starts one thread per ACME client. Each begins when the server serves, and ends when the
    /// server shuts down or the returned value is dropped.
    pub(crate) fn start(self, handle: &Handle) -> Result<Vec<Working>, Error> {
        let start = |supplier: Supplier| {
            let (mut begun, mut ended) = (handle.subscribe(), handle.subscribe());
            // A successor waits: until it serves, the previous process has the sockets and the
            // lock.
            let begin = async move { drop(begun.wait_for(|order| *order >= Order::Serve).await) };
            let end = async move { drop(ended.wait_for(|order| *order > Order::Serve).await) };
            supplier.start(begin, end).map_err(Error::Worker)
        };
        self.suppliers.into_iter().map(start).collect()
    }
}

// RFC 8555 §8.3: the path of a validation request, up to its token.
const PATH: &str = "/.well-known/acme-challenge/";

/// The maximum length of a token. Those of known certificate authorities are much shorter.
const TOKEN_BYTES_MAX: usize = 256;

/// How long a request waits for the challenge responses of other instances.
const LOOK_MAX: Duration = Duration::from_secs(10);

fn answer_first(application: Application, answers: Arc<[Arc<Challenges>]>) -> Application {
    let known = Arc::clone(&answers);
    let claims = move |head: &Head| {
        let is_asked =
            |challenges: &Arc<Challenges>| challenges.has_tokens() || challenges.looks_up_tokens();
        let is_check = known.iter().any(is_asked)
            && head.path().starts_with(PATH)
            && matches!(head.method(), Method::GET | Method::HEAD);
        let token = token(head.path()).filter(|_| is_check)?;
        let is_own = known.iter().any(|challenges| challenges.token(token).is_some());
        let may_be_others = || known.iter().any(|challenges| challenges.looks_up_tokens());
        if is_own { Some(Claim::Surely) } else { may_be_others().then_some(Claim::Perhaps) }
    };
    application.answer_first(claims, |rest| Answering { answers, rest })
}

/// The token at the end of a path.
// RFC 8555 §8.3: a token consists of characters of the base64url alphabet.
fn token(path: &str) -> Option<&str> {
    let is_letter = |byte: u8| byte.is_ascii_alphanumeric() || b"-_".contains(&byte);
    let token = path.strip_prefix(PATH)?;
    let is_token = (1..=TOKEN_BYTES_MAX).contains(&token.len()) && token.bytes().all(is_letter);
    is_token.then_some(token)
}

async fn answer(all: &[Arc<Challenges>], token: &str) -> Option<Arc<str>> {
    if let Some(own) = all.iter().find_map(|challenges| challenges.token(token)) {
        return Some(own);
    }
    for challenges in all.iter().filter(|challenges| challenges.looks_up_tokens()) {
        // The storage may hang, so the lookup has a timeout.
        let found = timeout(LOOK_MAX, challenges.token_elsewhere(token)).await;
        if let Ok(Some(found)) = found {
            return Some(found);
        }
    }
    None
}

/// Answers validation requests, and passes all others to the application.
struct Answering {
    answers: Arc<[Arc<Challenges>]>,
    rest: Application,
}

impl Service for Answering {
    async fn call(&self, request: Request) -> Response {
        let found = match token(request.parts.head.path()) {
            Some(token) => answer(&self.answers, token).await,
            None => None,
        };
        match found {
            Some(text) => {
                let kind = [(CONTENT_TYPE, "application/octet-stream")];
                (kind, text.as_bytes().to_vec()).into_response()
            }
            None => self.rest.call(request).await,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use peregrine_web::App;

    #[test]
    fn requests_by_which_names_are_checked_are_answered_before_all_routes() {
        let challenges = Challenges::new().expect("a set of challenges");
        let app = App::new().get("/{*all}", || "the application").post("/{*all}", || "posted");
        let app = app.build().expect("valid routes");
        let client = answer_first(app, Arc::new([Arc::clone(&challenges)])).test();
        let text = |path: &str| client.get(path).send_now().text();
        let path = format!("{PATH}token");
        assert_eq!(text(&path), "the application");
        challenges.answer_token("token", "token.thumb");
        assert_eq!(text(&path), "token.thumb");
        for other in ["", "other", "token/", "token/more"] {
            assert_eq!(text(&format!("{PATH}{other}")), "the application", "{other}");
        }
        assert_eq!(client.post(&path).send_now().text(), "posted");
        assert_eq!(text("/token"), "the application");
        challenges.forget_token("token");
        assert_eq!(text(&path), "the application");
    }
}
