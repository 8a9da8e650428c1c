//! Converts upstream responses for clients: framing, upgrades, and bodies without content.

use super::ReverseProxy;
use crate::attempt::UpstreamResponse;
use crate::body::{HeadResponseBody, UpstreamResponseBody};
use crate::headers;
use crate::tunnel::copy_bidirectional;
use http::header::{CONTENT_LENGTH, UPGRADE};
use http::{HeaderValue, Method, StatusCode};
use peregrine_web::panic::catch_subscriber_panic;
use peregrine_web::upgrade::UpgradeHandler;
use peregrine_web::{Body, Problem, Response};

impl ReverseProxy {
    /// Converts an upstream's response for the client. `protocols` are those that the request
    /// offered to switch to.
    pub(super) fn respond(
        &self,
        upstream_response: UpstreamResponse,
        method: &Method,
        protocols: Option<&HeaderValue>,
    ) -> Result<Response, Problem> {
        let UpstreamResponse { mut response, connection, in_flight } = upstream_response;
        let index = in_flight.index;
        let switches_protocol = response.status() == StatusCode::SWITCHING_PROTOCOLS;
        let headers = response.headers();
        let violation = match protocols {
            _ if !switches_protocol && headers::has_valid_framing(headers) => None,
            _ if !switches_protocol => Some("with framing that was not requested"),
            Some(requested) if headers::is_requested_upgrade(requested, headers) => None,
            _ => Some("with a protocol that was not requested"),
        };
        if let Some(violation) = violation {
            let upstream = &self.upstreams.set().upstreams[index];
            catch_subscriber_panic(|| {
                tracing::warn!(
                    target: "peregrine",
                    upstream = %upstream,
                    "an upstream responded {violation}"
                );
            });
            let detail = format!("the server behind this one responded {violation}");
            return Err(Problem::new(StatusCode::BAD_GATEWAY, "upstream-failed", detail));
        }
        let (status, version) = (response.status(), response.version());
        let mut client_response = Response::new(status);
        client_response.headers =
            headers::client_headers(response.headers(), version, &self.pseudonym);
        if switches_protocol {
            if let Some(protocol) = response.headers().get(UPGRADE) {
                client_response.headers.insert(UPGRADE, protocol.clone());
            }
            let (upgraded, idle_timeout) =
                (hyper::upgrade::on(&mut response), self.timeouts.body_idle);
            return Ok(client_response.with_upgrade(UpgradeHandler::new(async move |client| {
                // The tunnel counts as a request in progress until it ends.
                let _in_flight = in_flight;
                match upgraded.await {
                    Ok(upgraded) => copy_bidirectional(client, upgraded, idle_timeout).await,
                    Err(error) => {
                        catch_subscriber_panic(|| {
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
            connection,
            &self.pools[index],
            in_flight,
            self.timeouts.body_idle,
        );
        // RFC 9110 §9.3.2: HEAD gets the fields of a response to GET, without a length if it is
        // unknown.
        client_response.body = match length {
            length if *method == Method::HEAD => Body::new(HeadResponseBody(
                length.and_then(|length| length.to_str().ok()?.parse().ok()),
            )),
            // RFC 9110 §8.6: in a 304 this is the length of the client's stored response.
            Some(length) if status == StatusCode::NOT_MODIFIED => {
                client_response.headers.insert(CONTENT_LENGTH, length);
                Body::empty()
            }
            _ if http_body::Body::is_end_stream(&body) => Body::empty(),
            _ => Body::new(body),
        };
        Ok(client_response)
    }
}
