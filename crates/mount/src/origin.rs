//! What a request of ours was, kept while a tower layer has it in the form of the `http` crate.
//!
//! Extensions must be `Send`, and what is kept is not. So it stays in a list of the thread, and the
//! extensions carry its number.

use crate::request::to_head;
use http::StatusCode;
use peregrine_proto::Reject;
use peregrine_web::upgrade::OnUpgrade;
use peregrine_web::{Body, Head, Parts, Problem, Request};
use std::cell::{Cell, RefCell};
use std::collections::HashMap;

thread_local! {
    static ORIGINS: RefCell<HashMap<u64, Origin>> = RefCell::default();
    static LAST: Cell<u64> = const { Cell::new(0) };
}

/// What is kept.
pub(crate) struct Origin {
    parts: Parts,
    upgrade: Option<OnUpgrade>,
}

/// The number under which it is kept. Numbers are never used twice on a thread.
#[derive(Clone, Copy, Debug)]
struct Number(u64);

/// Whoever gave a request to a layer. Dropping it ends the keeping.
pub(crate) struct Keeper(u64);

/// Whoever the layer gave a request to.
pub(crate) struct OriginGuard(u64);

impl Origin {
    /// Keeps `parts` for the request that was made of them.
    pub(crate) fn keep<B>(parts: Parts, request: &mut http::Request<B>) -> Keeper {
        let number = LAST.get() + 1;
        LAST.set(number);
        request.extensions_mut().insert(Number(number));
        ORIGINS.with_borrow_mut(|all| all.insert(number, Self { parts, upgrade: None }));
        Keeper(number)
    }
}

impl Keeper {
    /// The upgrade that the response inside the layer came with.
    pub(crate) fn take_upgrade(&self) -> Option<OnUpgrade> {
        ORIGINS.with_borrow_mut(|all| all.get_mut(&self.0)?.upgrade.take())
    }
}

impl Drop for Keeper {
    fn drop(&mut self) {
        // While the thread ends there is no list any more. What is kept is dropped outside of it.
        let _ = ORIGINS.try_with(|all| all.borrow_mut().remove(&self.0));
    }
}

impl OriginGuard {
    /// Our request again, with what the layer changed.
    ///
    /// # Errors
    /// The layer took the request to another thread, kept it beyond its end, or made of it what is
    /// no HTTP.
    pub(crate) fn restore(
        mut parts: http::request::Parts,
        body: Body,
    ) -> Result<(Request, Self), Problem> {
        let number = parts.extensions.remove::<Number>().map(|number| number.0);
        let shared = number.and_then(|number| {
            ORIGINS.with_borrow(|all| all.get(&number).map(|origin| (number, share(&origin.parts))))
        });
        let Some((number, mut request)) = shared else {
            return Err(failed(
                "a tower layer gave back a request after its end, on another thread, or without its \
                 extensions",
            ));
        };
        if is_changed(&parts, &request.parts.head) {
            let head = to_head(&parts).map_err(spoiled)?;
            let rebuilt = rebuild(&request.parts, head);
            request = Request::new(
                rebuilt,
                Body::empty(),
                request.parts.states().clone(),
                request.parts.connection().clone(),
            );
        }
        request.body = body;
        *request.parts.extensions_mut() = parts.extensions;
        Ok((request, Self(number)))
    }

    /// Keeps the upgrade of the response for whoever gave the request to the layer.
    pub(crate) fn put_upgrade(&self, upgrade: OnUpgrade) {
        ORIGINS.with_borrow_mut(|all| {
            if let Some(origin) = all.get_mut(&self.0) {
                origin.upgrade = Some(upgrade);
            }
        });
    }
}

fn failed(cause: &str) -> Problem {
    tracing::error!(target: "peregrine", cause, "a tower layer spoiled a request");
    let detail = "The server could not answer this request.";
    Problem::new(StatusCode::INTERNAL_SERVER_ERROR, "layer-failed", detail)
}

fn spoiled(reject: Reject) -> Problem {
    match reject {
        // The peer's part of it may be almost all of it, and peers do not write errors into logs.
        Reject::HeadTooLong | Reject::RequestLineTooLong => reject.into(),
        _ => failed(reject.cause()),
    }
}

/// The same request once more, without its body. A layer that tries again asks more than once.
fn share(parts: &Parts) -> Request {
    let (states, connection) = (parts.states().clone(), parts.connection().clone());
    Request::new(parts.head.share(), Body::empty(), states, connection)
}

/// Did the layer change method, target or fields? Mostly it did not, and then the head stays as it
/// was, with its route and its parameters.
fn is_changed(parts: &http::request::Parts, head: &Head) -> bool {
    let target = head.slice(head.index().target);
    let is_target = match parts.uri.path_and_query() {
        // Most targets are a path, which is compared without being put together.
        Some(path) if parts.uri.scheme().is_none() => path.as_str().as_bytes() == target,
        _ => parts.uri == head.uri(),
    };
    if !is_target || parts.method.as_str() != head.method_name() {
        return true;
    }
    if parts.headers.len() != head.index().fields.len() {
        return true;
    }
    // Fields of one name stand together in the map, so it may have another order than the wire.
    let mut wire = head.fields();
    let is_in_order = parts.headers.iter().all(|(name, value)| {
        wire.next().is_some_and(|(wire_name, wire_value)| {
            let is_name = name.as_str().as_bytes().eq_ignore_ascii_case(wire_name);
            is_name && value.as_bytes() == wire_value
        })
    });
    !is_in_order && parts.headers != head.to_header_map()
}

/// `head` with the route of the request that it was made of. The route is decided, but parameters
/// are places in the path: a new path has none.
fn rebuild(origin: &Parts, mut head: Head) -> Head {
    let is_same_path = origin.head.path() == head.path();
    head.resolve(|_, parameters| {
        if is_same_path {
            *parameters = *origin.head.parameters();
        }
        (origin.head.route(), ())
    });
    head
}
