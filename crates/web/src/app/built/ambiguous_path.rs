//! Rejects paths that another server may map to a different route.

use super::route::UNROUTED_OPTIONS;
use super::{Application, Target};
use crate::http::connection::ConnectionInfo;
use crate::http::head::Head;
use peregrine_proto::Method;
use peregrine_router::{any_reading, has_dot_segments, may_be_ambiguous};
use std::rc::Rc;

impl Application {
    /// Returns `target`. If another server may read the path as a path of another route, returns
    /// the target that responds 400 instead.
    #[inline(never)]
    pub(super) fn unless_ambiguous<'a>(
        &'a self,
        head: &mut Head,
        connection: &ConnectionInfo,
        target: Target<'a>,
    ) -> Target<'a> {
        let path = head.path().as_bytes();
        if !may_be_ambiguous(path) || target.options.allows_ambiguous_paths {
            return target;
        }
        if !has_dot_segments(path) && !self.leads_elsewhere(head, connection, target) {
            return target;
        }
        head.resolve(|_, parameters| {
            parameters.clear();
            (None, ())
        });
        Target { endpoint: &self.unmatched.ambiguous, options: &UNROUTED_OPTIONS, pattern: None }
    }

    /// Whether another server may read the path as a path of another route or fallback. Routes with
    /// different handlers or middleware have different endpoints. If the path that the other server
    /// reads has no route here, there is nothing to protect.
    fn leads_elsewhere(
        &self,
        head: &Head,
        connection: &ConnectionInfo,
        target: Target<'_>,
    ) -> bool {
        if self.is_missing(target) {
            return false;
        }
        let mut other = head.share();
        let from = head.as_bytes().len();
        any_reading(head.path().as_bytes(), |path| {
            if !other.set_path(path, from) {
                return true;
            }
            let found = match self.preflight_if_asked(&mut other, connection) {
                Some(found) => found,
                None => {
                    let found = self.resolve(&mut other);
                    self.find_rest(&mut other, connection, found)
                }
            };
            !self.is_missing(found) && !Rc::ptr_eq(found.endpoint, target.endpoint)
        })
    }

    /// Whether `target` is the application's 404 or redirect, and no fallback replaces it.
    fn is_missing(&self, target: Target<'_>) -> bool {
        !self.unmatched.has_fallback && Rc::ptr_eq(target.endpoint, &self.unmatched.missing)
    }

    fn preflight_if_asked(
        &self,
        head: &mut Head,
        connection: &ConnectionInfo,
    ) -> Option<Target<'_>> {
        let is_options = head.index().method == Method::Options;
        is_options.then(|| self.preflight(head, connection)).flatten()
    }
}
