//! Rejects paths that another server may map to a different route.

use super::route::UNMATCHED_OPTIONS;
use super::{BuiltApp, MatchedEndpoint};
use crate::http::connection::ConnectionInfo;
use crate::http::head::RequestHead;
use peregrine_proto::Method;
use peregrine_router::{any_reading, has_dot_segments, may_be_ambiguous};
use std::rc::Rc;

impl BuiltApp {
    /// Returns the target that responds 400 if the path has dot segments, or if another server may
    /// read it as a path of another route; otherwise returns `target`. The options of `target` can
    /// turn this check off.
    #[inline(never)]
    pub(super) fn reject_ambiguous<'a>(
        &'a self,
        head: &mut RequestHead,
        connection: &ConnectionInfo,
        target: MatchedEndpoint<'a>,
    ) -> MatchedEndpoint<'a> {
        let path = head.path().as_bytes();
        if !may_be_ambiguous(path) || target.options.allows_ambiguous_paths {
            return target;
        }
        if !has_dot_segments(path) && !self.has_conflicting_reading(head, connection, target) {
            return target;
        }
        // The route is not called, so it and its parameters are removed from the head.
        head.resolve(|_, parameters| {
            parameters.clear();
            (None, ())
        });
        MatchedEndpoint {
            endpoint: &self.unmatched.ambiguous,
            options: &UNMATCHED_OPTIONS,
            pattern: None,
        }
    }

    /// Whether another server may read the path as a path of another route or fallback. Routes with
    /// different handlers or middleware have different endpoints, so the endpoints are compared. If
    /// the path that the other server reads has no route here, there is nothing to protect.
    fn has_conflicting_reading(
        &self,
        head: &RequestHead,
        connection: &ConnectionInfo,
        target: MatchedEndpoint<'_>,
    ) -> bool {
        if self.is_not_found(target) {
            // The request reaches no handler.
            return false;
        }
        let mut other_head = head.share();
        let original_len = head.as_bytes().len();
        any_reading(head.path().as_bytes(), |reading| {
            // A head that is too long for this check is rejected.
            if !other_head.set_path(reading, original_len) {
                return true;
            }
            let other_target = match self.preflight_if_options(&mut other_head, connection) {
                Some(other_target) => other_target,
                None => {
                    let found = self.resolve(&mut other_head);
                    self.find_slowly(&mut other_head, connection, found)
                }
            };
            !self.is_not_found(other_target) && !Rc::ptr_eq(other_target.endpoint, target.endpoint)
        })
    }

    /// Whether `target` is the application's 404 or redirect, and no fallback replaces it.
    fn is_not_found(&self, target: MatchedEndpoint<'_>) -> bool {
        !self.unmatched.has_fallback && Rc::ptr_eq(target.endpoint, &self.unmatched.not_found)
    }

    fn preflight_if_options(
        &self,
        head: &mut RequestHead,
        connection: &ConnectionInfo,
    ) -> Option<MatchedEndpoint<'_>> {
        let is_options = head.index().method == Method::Options;
        is_options.then(|| self.preflight(head, connection)).flatten()
    }
}
