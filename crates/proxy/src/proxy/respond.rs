//! Converts upstream responses for clients: framing, upgrades, and bodies without content.

use super::ReverseProxy;
use crate::attempt::UpstreamResponse;
use crate::body::{HeadResponseBody, UpstreamResponseBody};
use crate::headers;
use crate::tunnel::copy_bidirectional;
use http::header::{CONTENT_LENGTH, UPGRADE};
use http::{HeaderValue, Method, StatusCode};
use peregrine_web::panic::catch_log_panic;
use peregrine_web::upgrade::UpgradeHandler;
use peregrine_web::{Body, Problem, Response};

impl ReverseProxy {
    /// Converts an upstream's response for the client.
    pub(super) fn respond(
        &self,
        answer: UpstreamResponse,
        method: &Method,
        protocols: Option<&HeaderValue>,
    ) -> Result<Response, Problem> {
        let UpstreamResponse { mut response, connection: sender, in_flight: busy } = answer;
        let number = busy.upstream;
        let is_switch = response.status() == StatusCode::SWITCHING_PROTOCOLS;
        let headers = response.headers();
        let wrong = match protocols {
            _ if !is_switch && headers::has_valid_framing(headers) => None,
            _ if !is_switch => Some("with framing that was not requested"),
            Some(asked) if headers::is_requested_upgrade(asked, headers) => None,
            _ => Some("with a protocol that was not requested"),
        };
        if let Some(wrong) = wrong {
            let upstream = &self.upstreams.set().upstreams[number];
            catch_log_panic(|| {
                tracing::warn!(
                    target: "peregrine",
                    upstream = %upstream,
                    "an upstream responded {wrong}"
                );
            });
            let detail = format!("the server behind this one responded {wrong}");
            return Err(Problem::new(StatusCode::BAD_GATEWAY, "upstream-failed", detail));
        }
        let (status, version) = (response.status(), response.version());
        let mut ours = Response::new(status);
        ours.headers = headers::client_headers(response.headers(), version, &self.pseudonym);
        if is_switch {
            if let Some(protocol) = response.headers().get(UPGRADE) {
                ours.headers.insert(UPGRADE, protocol.clone());
            }
            let (theirs, idle_timeout) =
                (hyper::upgrade::on(&mut response), self.timeouts.body_idle);
            return Ok(ours.with_upgrade(UpgradeHandler::new(async move |client| {
                // The tunnel counts as a request in progress until it ends.
                let _busy = busy;
                match theirs.await {
                    Ok(theirs) => copy_bidirectional(client, theirs, idle_timeout).await,
                    Err(error) => {
                        catch_log_panic(|| {
                            tracing::warn!(
                                target: "peregrine",
                                %error,
                                "an upstream closed the connection after its 101"
                            );
                        });
                    }
                }
            })));
        }
        let length = response.headers().get(CONTENT_LENGTH).cloned();
        let body = UpstreamResponseBody::new(
            response.into_body(),
            sender,
            &self.pools[number],
            busy,
            self.timeouts.body_idle,
        );
        // RFC 9110 §9.3.2: HEAD gets the fields of a response to GET, without a length if it is
        // unknown.
        ours.body = match length {
            length if *method == Method::HEAD => Body::new(HeadResponseBody(
                length.and_then(|length| length.to_str().ok()?.parse().ok()),
            )),
            // RFC 9110 §8.6: in a 304 this is the length of the client's stored response.
            Some(length) if status == StatusCode::NOT_MODIFIED => {
                ours.headers.insert(CONTENT_LENGTH, length);
                Body::empty()
            }
            _ if http_body::Body::is_end_stream(&body) => Body::empty(),
            _ => Body::new(body),
        };
        Ok(ours)
    }
}
