//! Obtains certificates through ACME while the server runs: starts the threads that request them,
//! and responds to the HTTP requests with which the certificate authority validates domain names.

use http::Method;
use http::header::CONTENT_TYPE;
pub use peregrine_acme::*;
use peregrine_runtime::Error;
use peregrine_runtime::internal::{BoxedMakeApp, BuildFuture};
use peregrine_server::Lifecycle;
use peregrine_tls::{ChallengeResponses, TlsConfig};
use peregrine_web::built::{BuiltApp, Intercept};
use peregrine_web::head::RequestHead;
use peregrine_web::{IntoResponse, Request, Response, Service};
use std::sync::Arc;
use std::time::Duration;
use tokio::sync::watch;
use tokio::time::timeout;

/// The ACME clients of a server that has not started yet, and their challenge responses.
pub(crate) struct AcmeClients {
    clients: Vec<AcmeClient>,
    challenge_sets: Arc<[Arc<ChallengeResponses>]>,
}

impl AcmeClients {
    pub(crate) fn new<'t>(tls_configs: impl Iterator<Item = &'t TlsConfig>) -> Self {
        let clients = AcmeClient::for_listeners(tls_configs);
        let challenge_sets = clients.iter().map(AcmeClient::challenge_responses).collect();
        Self { clients, challenge_sets }
    }

    /// Wraps the applications of `make_app` so that validation requests get their response before
    /// any route is tried.
    pub(crate) fn intercepting_challenges<'m>(
        &self,
        make_app: &'m mut dyn FnMut() -> BoxedMakeApp,
    ) -> Box<dyn FnMut() -> BoxedMakeApp + 'm> {
        if self.challenge_sets.is_empty() {
            return Box::new(make_app);
        }
        let challenge_sets = Arc::clone(&self.challenge_sets);
        Box::new(move || {
            let (make, challenge_sets) = (make_app(), Arc::clone(&challenge_sets));
            Box::new(move || -> BuildFuture {
                let build = make();
                Box::pin(async move { Ok(intercept_challenges(build.await?, challenge_sets)) })
            })
        })
    }

    /// Starts one thread per ACME client. Each thread begins its work when the server serves, and
    /// ends when the server shuts down or the returned value is dropped.
    pub(crate) fn start(
        self,
        lifecycle: &watch::Receiver<Lifecycle>,
    ) -> Result<Vec<AcmeClientThread>, Error> {
        let start = |client: AcmeClient| {
            let (mut serving_state, mut shutdown_state) = (lifecycle.clone(), lifecycle.clone());
            // During an upgrade in place, the previous process holds the sockets and the lock of
            // the certificate storage until this one serves.
            let serving = async move {
                drop(serving_state.wait_for(|state| *state >= Lifecycle::Serving).await)
            };
            let shutdown = async move {
                drop(shutdown_state.wait_for(|state| *state > Lifecycle::Serving).await)
            };
            client.start(serving, shutdown).map_err(Error::Thread)
        };
        self.clients.into_iter().map(start).collect()
    }
}

// RFC 8555 §8.3: the path of a validation request, up to its token.
const CHALLENGE_PATH: &str = "/.well-known/acme-challenge/";

/// The maximum length of a token. Those of known certificate authorities are much shorter.
const TOKEN_BYTES_MAX: usize = 256;

/// How long a validation request waits for the challenge responses of other server instances.
const LOOKUP_TIMEOUT: Duration = Duration::from_secs(10);

/// Makes `application` respond to validation requests while a challenge is pending.
fn intercept_challenges(
    application: BuiltApp,
    challenge_sets: Arc<[Arc<ChallengeResponses>]>,
) -> BuiltApp {
    let responder_sets = Arc::clone(&challenge_sets);
    // Decides before any route is tried whether a request may be a validation request.
    let classify = move |head: &RequestHead| {
        let is_pending = |challenges: &Arc<ChallengeResponses>| {
            challenges.has_http01() || challenges.has_remote_http01()
        };
        let is_validation = challenge_sets.iter().any(is_pending)
            && head.path().starts_with(CHALLENGE_PATH)
            && matches!(head.method(), Method::GET | Method::HEAD);
        let token = challenge_token(head.path()).filter(|_| is_validation)?;
        let is_local = challenge_sets.iter().any(|challenges| challenges.http01(token).is_some());
        // Another instance of the server may have started the challenge.
        let may_be_remote =
            || challenge_sets.iter().any(|challenges| challenges.has_remote_http01());
        if is_local {
            Some(Intercept::NeverShed)
        } else {
            may_be_remote().then_some(Intercept::Sheddable)
        }
    };
    application
        .intercept(classify, |app| ChallengeResponder { challenge_sets: responder_sets, app })
}

/// Returns the token at the end of a validation request's path.
// RFC 8555 §8.3: a token consists of characters of the base64url alphabet.
fn challenge_token(path: &str) -> Option<&str> {
    let is_token_byte = |byte: u8| byte.is_ascii_alphanumeric() || b"-_".contains(&byte);
    let token = path.strip_prefix(CHALLENGE_PATH)?;
    let is_valid = (1..=TOKEN_BYTES_MAX).contains(&token.len()) && token.bytes().all(is_token_byte);
    is_valid.then_some(token)
}

/// Finds the response to a challenge, first in this process and then in the shared storage.
async fn find_key_authorization(
    challenge_sets: &[Arc<ChallengeResponses>],
    token: &str,
) -> Option<Arc<str>> {
    if let Some(authorization) =
        challenge_sets.iter().find_map(|challenges| challenges.http01(token))
    {
        return Some(authorization);
    }
    for challenges in challenge_sets.iter().filter(|challenges| challenges.has_remote_http01()) {
        // The shared storage may hang, so the lookup has a timeout.
        let authorization = timeout(LOOKUP_TIMEOUT, challenges.remote_http01(token)).await;
        if let Ok(Some(authorization)) = authorization {
            return Some(authorization);
        }
    }
    None
}

/// Responds to validation requests, and passes all others to the application.
struct ChallengeResponder {
    challenge_sets: Arc<[Arc<ChallengeResponses>]>,
    app: BuiltApp,
}

impl Service for ChallengeResponder {
    async fn call(&self, request: Request) -> Response {
        let authorization = match challenge_token(request.parts.head.path()) {
            Some(token) => find_key_authorization(&self.challenge_sets, token).await,
            None => None,
        };
        match authorization {
            Some(authorization) => {
                let headers = [(CONTENT_TYPE, "application/octet-stream")];
                (headers, authorization.as_bytes().to_vec()).into_response()
            }
            None => self.app.call(request).await,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use peregrine_web::App;

    #[test]
    fn validation_requests_bypass_all_routes() {
        let challenges = ChallengeResponses::new().expect("a set of challenges");
        let app = App::new().get("/{*all}", || "the application").post("/{*all}", || "posted");
        let app = app.build().expect("valid routes");
        let client = intercept_challenges(app, Arc::new([Arc::clone(&challenges)])).test();
        let text = |path: &str| client.get(path).send_blocking().text();
        let path = format!("{CHALLENGE_PATH}token");
        assert_eq!(text(&path), "the application");
        challenges.set_http01("token", "token.thumb");
        assert_eq!(text(&path), "token.thumb");
        for other in ["", "other", "token/", "token/more"] {
            assert_eq!(text(&format!("{CHALLENGE_PATH}{other}")), "the application", "{other}");
        }
        assert_eq!(client.post(&path).send_blocking().text(), "posted");
        assert_eq!(text("/token"), "the application");
        challenges.remove_http01("token");
        assert_eq!(text(&path), "the application");
    }
}
