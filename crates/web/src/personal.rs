//! Whether the answer to a request is about who sent it.

use crate::request::Parts;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};

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
    /// It was said, and nobody asked for it before.
    Yes,
    /// A cache wants to know.
    Watched(Arc<AtomicBool>),
}

/// Sees whether the answer to a request became about its client, wherever that is found out.
#[derive(Clone, Debug)]
pub struct PersonalWatch(Arc<AtomicBool>);

impl Personal {
    /// Says that the answer to this request is about its client.
    pub fn note(parts: &mut Parts) {
        match parts.extensions().get::<Self>() {
            Some(Self(Kind::Watched(is_personal))) => is_personal.store(true, Relaxed),
            Some(Self(Kind::Yes)) => {}
            None => drop(parts.extensions_mut().insert(Self(Kind::Yes))),
        }
    }

    /// Was it said so far?
    #[must_use]
    pub fn is_noted(parts: &Parts) -> bool {
        match parts.extensions().get::<Self>() {
            Some(Self(Kind::Watched(is_personal))) => is_personal.load(Relaxed),
            Some(Self(Kind::Yes)) => true,
            None => false,
        }
    }

    /// What will see it, also if it is said further in.
    pub fn watch(parts: &mut Parts) -> PersonalWatch {
        let is_noted = match parts.extensions().get::<Self>() {
            Some(Self(Kind::Watched(is_personal))) => {
                return PersonalWatch(Arc::clone(is_personal));
            }
            Some(Self(Kind::Yes)) => true,
            None => false,
        };
        let is_personal = Arc::new(AtomicBool::new(is_noted));
        parts.extensions_mut().insert(Self(Kind::Watched(Arc::clone(&is_personal))));
        PersonalWatch(is_personal)
    }
}

impl PersonalWatch {
    /// Was it said so far?
    #[must_use]
    pub fn is_noted(&self) -> bool {
        self.0.load(Relaxed)
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
}
