//! Whether the answer to a request is about who sent it.

use crate::request::Parts;
use std::sync::Arc;
use std::sync::atomic::{AtomicU8, Ordering::Relaxed};

/// Says that the answer to a request is about its client, who is known by something that caches know nothing of: a session, a key, a
/// certificate.
///
/// Extractors and middleware that find out who a client is say so by [`Personal::note`], as the ones of this project do. The response
/// cache keeps such an answer only if it says that it is for all. Code of yours that finds clients by a field of its own does the same:
///
/// ```
/// use peregrine::prelude::*;
/// use peregrine::web::personal::Personal;
///
/// #[derive(Clone)]
/// struct Customer(String);
///
/// async fn find_customer(mut request: Request, next: Next<'_>) -> Response {
///     if let Some(name) = request.header("x-customer").map(str::to_owned) {
///         request.parts.extensions_mut().insert(Customer(name));
///         Personal::note(&mut request.parts);
///     }
///     next.run(request).await
/// }
/// ```
#[derive(Clone, Debug)]
pub struct Personal(Kind);

#[derive(Clone, Debug)]
enum Kind {
    /// It was said, in these ways, and nobody asked for it before.
    Said(u8),
    /// A cache wants to know.
    Watched(Arc<AtomicU8>),
}

/// By what everybody looks at who keeps answers.
const BY_CREDENTIALS: u8 = 1;
/// By anything else.
const OTHERWISE: u8 = 2;

/// Sees whether the answer to a request became about its client, wherever that is found out.
#[derive(Clone, Debug)]
pub struct PersonalWatch(Arc<AtomicU8>);

impl Personal {
    /// Says that the answer to this request is about its client.
    pub fn note(parts: &mut Parts) {
        Self::say(parts, OTHERWISE);
    }

    /// The same of a client that is known by `Authorization`, `X-Api-Key` or the query alone: whoever keeps answers looks at these, and
    /// tells clients apart by them.
    pub fn note_credentials(parts: &mut Parts) {
        Self::say(parts, BY_CREDENTIALS);
    }

    fn say(parts: &mut Parts, how: u8) {
        let said = match parts.extensions().get::<Self>() {
            Some(Self(Kind::Watched(said))) => {
                said.fetch_or(how, Relaxed);
                return;
            }
            Some(Self(Kind::Said(said))) if said & how == how => return,
            Some(Self(Kind::Said(said))) => *said,
            None => 0,
        };
        parts.extensions_mut().insert(Self(Kind::Said(said | how)));
    }

    /// Was it said so far?
    #[must_use]
    pub fn is_noted(parts: &Parts) -> bool {
        match parts.extensions().get::<Self>() {
            Some(Self(Kind::Watched(said))) => said.load(Relaxed) > 0,
            Some(Self(Kind::Said(_))) => true,
            None => false,
        }
    }

    /// What will see it, also if it is said further in.
    pub fn watch(parts: &mut Parts) -> PersonalWatch {
        let said = match parts.extensions().get::<Self>() {
            Some(Self(Kind::Watched(said))) => return PersonalWatch(Arc::clone(said)),
            Some(Self(Kind::Said(said))) => *said,
            None => 0,
        };
        let said = Arc::new(AtomicU8::new(said));
        parts.extensions_mut().insert(Self(Kind::Watched(Arc::clone(&said))));
        PersonalWatch(said)
    }
}

impl PersonalWatch {
    /// Was it said so far?
    #[must_use]
    pub fn is_noted(&self) -> bool {
        self.0.load(Relaxed) > 0
    }

    /// Was it said so far of a client that is known by something else than `Authorization`, `X-Api-Key` and the query?
    #[must_use]
    pub fn is_noted_otherwise(&self) -> bool {
        self.0.load(Relaxed) & OTHERWISE > 0
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::request::Request;
    use crate::{Body, Head};
    use std::rc::Rc;

    #[test]
    fn whoever_says_it_all_that_watch_see_it() {
        let request = Request::new(Head::take(), Body::empty(), Rc::default(), Rc::default());
        let mut parts = request.parts;
        let first = Personal::watch(&mut parts);
        let second = Personal::watch(&mut parts);
        assert!(!first.is_noted() && !second.is_noted() && !Personal::is_noted(&parts));
        Personal::note(&mut parts);
        assert!(first.is_noted() && second.is_noted() && Personal::is_noted(&parts));
        parts.extensions_mut().clear();
        Personal::note(&mut parts);
        Personal::note(&mut parts);
        assert!(Personal::is_noted(&parts) && Personal::watch(&mut parts).is_noted());
    }

    #[test]
    fn what_clients_are_known_by_is_seen_too() {
        let request = Request::new(Head::take(), Body::empty(), Rc::default(), Rc::default());
        let mut parts = request.parts;
        Personal::note_credentials(&mut parts);
        assert!(Personal::is_noted(&parts));
        let watch = Personal::watch(&mut parts);
        assert!(watch.is_noted() && !watch.is_noted_otherwise());
        Personal::note(&mut parts);
        assert!(watch.is_noted_otherwise());
        parts.extensions_mut().clear();
        Personal::note_credentials(&mut parts);
        Personal::note(&mut parts);
        assert!(Personal::watch(&mut parts).is_noted_otherwise());
    }
}
