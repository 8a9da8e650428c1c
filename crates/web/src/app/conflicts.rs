//! Compares routes with the same path, to determine which methods each one handles and which routes
//! are unreachable.

use crate::app::TrailingSlash;
use crate::app::builder::RouteEntry;
use crate::app::error::BuildErrorKind;
use crate::app::pattern::next_parameter;
use crate::app::route_table::{EXTENSION_METHODS_MAX, MethodFilter, MethodIndex};
use peregrine_proto::Method as KnownMethod;
use peregrine_router::MethodSet;
use std::collections::{BTreeSet, HashMap};
use std::rc::Rc;

/// Returns the methods that each entry handles. Among entries with the same shape and conditions,
/// one for GET also handles HEAD if none is for HEAD, and an `any` entry handles the methods that
/// no other entry handles.
pub(crate) fn method_sets(
    entries: &[Box<RouteEntry>],
    method_index: &mut MethodIndex,
    slash_policy: TrailingSlash,
) -> Result<Vec<MethodSet>, BuildErrorKind> {
    let mut keyed = Vec::with_capacity(entries.len());
    // For each `overlap_key`, the methods that its entries name.
    let mut claimed_by_key: HashMap<String, MethodSet> = HashMap::new();
    for entry in entries {
        let methods = match &entry.methods {
            // Determined below, when the methods of the other entries are known.
            MethodFilter::Any => MethodSet::NONE,
            MethodFilter::One(method) => {
                let number = method_index.add(method);
                let number = number.ok_or_else(|| BuildErrorKind::LimitExceeded {
                    message: format!(
                        "{} is one method too many: an application can name \
                         {EXTENSION_METHODS_MAX} extension methods; use `any` for some and check \
                         the method in the handler",
                        entry.description()
                    ),
                })?;
                MethodSet::single(number)
            }
        };
        // The key contains the conditions: routes with different conditions do not claim methods
        // from each other, because they are checked in order.
        let key = overlap_key(entry, slash_policy);
        let claimed = claimed_by_key.entry(key.clone()).or_default();
        *claimed = claimed.union(methods);
        keyed.push((key, methods));
    }
    let (get, head) =
        (MethodSet::single(KnownMethod::Get as u8), MethodSet::single(KnownMethod::Head as u8));
    let with_head = |methods: MethodSet| {
        if methods.contains(KnownMethod::Get as u8) { methods.union(head) } else { methods }
    };
    Ok(keyed
        .into_iter()
        .map(|(key, methods)| {
            let claimed = claimed_by_key[&key];
            if methods.is_empty() {
                // An `any` entry.
                MethodSet::from_bits(!with_head(claimed).bits())
            } else if methods == get && !claimed.contains(KnownMethod::Head as u8) {
                with_head(methods)
            } else {
                methods
            }
        })
        .collect())
}

/// The shape of the entry's pattern and its conditions; equal for entries that accept the same
/// requests, methods aside.
fn overlap_key(entry: &RouteEntry, slash_policy: TrailingSlash) -> String {
    let mut key = pattern_shape(&entry.pattern, slash_policy);
    for condition in condition_keys(entry) {
        // A question mark, which a path cannot contain, separates the conditions.
        key += &format!("?{condition}");
    }
    key
}

/// The entry's conditions as text; equal text means equal conditions.
fn condition_keys(entry: &RouteEntry) -> BTreeSet<String> {
    let mut keys = BTreeSet::new();
    for (index, name) in parameter_names(&entry.pattern).into_iter().enumerate() {
        let typed = entry.typed_parameters.iter().filter(|(typed_name, _)| typed_name == name);
        keys.extend(typed.map(|(_, kind)| format!("{index}:{}", kind.name)));
    }
    keys.extend(entry.guards.iter().map(|guard| match guard.equality_key() {
        Some(key) => key.into_owned(),
        None => format!("{:p}", Rc::as_ptr(guard).cast::<()>()),
    }));
    keys
}

/// Reports routes with conditions that are unreachable because a route checked earlier accepts
/// every request that they accept. `order` contains the IDs and methods of the routes, in the order
/// in which routes are checked.
pub(crate) fn report_shadowed(
    entries: &[Box<RouteEntry>],
    order: &[(u32, MethodSet)],
    slash_policy: TrailingSlash,
    errors: &mut Vec<BuildErrorKind>,
) {
    // For each shape, the earlier routes that have conditions, with their methods and conditions.
    type Earlier<'e> = (&'e RouteEntry, MethodSet, BTreeSet<String>);
    let mut checked: HashMap<String, Vec<Earlier<'_>>> = HashMap::new();
    for (id, methods) in order {
        let entry = &*entries[*id as usize];
        if !entry.has_conditions() {
            continue;
        }
        let conditions = condition_keys(entry);
        let earlier = checked.entry(pattern_shape(&entry.pattern, slash_policy)).or_default();
        let accepts_all = |(_, earlier_methods, earlier_conditions): &&Earlier<'_>| {
            methods.intersection(*earlier_methods) == *methods
                && earlier_conditions.is_subset(&conditions)
        };
        if let Some((first, ..)) = earlier.iter().find(accepts_all) {
            // One call may add several patterns, and a slash variant: these have the same location
            // and do not conflict. If the patterns are equal too, the line was executed twice.
            let is_other_call = first.location != entry.location || first.pattern == entry.pattern;
            if is_other_call && !entry.is_slash_variant {
                let (first, second) = (first.description(), entry.description());
                errors.push(BuildErrorKind::Shadowed { first, second });
            }
        }
        earlier.push((entry, *methods, conditions));
    }
}

/// The pattern with the names of its parameters removed, and without a trailing slash if the policy
/// ignores trailing slashes.
fn pattern_shape(pattern: &str, slash_policy: TrailingSlash) -> String {
    let mut shape = String::with_capacity(pattern.len());
    let mut rest = pattern;
    while let Some((before, name, after)) = next_parameter(rest) {
        shape.push_str(before);
        shape.push_str(if name.starts_with('*') { "{*}" } else { "{}" });
        rest = after;
    }
    shape.push_str(rest);
    if slash_policy == TrailingSlash::Ignore && shape.len() > 1 && shape.ends_with('/') {
        shape.pop();
    }
    shape
}

/// The names of the parameters in a pattern, from the left.
pub(crate) fn parameter_names(pattern: &str) -> Vec<&str> {
    let mut names = Vec::new();
    let mut rest = pattern;
    while let Some((_, name, after)) = next_parameter(rest) {
        names.push(name.trim_start_matches('*'));
        rest = after;
    }
    names
}
