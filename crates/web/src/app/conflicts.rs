//! Compares routes of the same path: which methods each one answers, and which routes are
//! unreachable.

use crate::app::TrailingSlash;
use crate::app::builder::RouteEntry;
use crate::app::error::BuildErrorKind;
use crate::app::pattern::next_parameter;
use crate::app::route_table::{EXTENSION_METHODS_MAX, MethodFilter, MethodIndex};
use peregrine_proto::Method as KnownMethod;
use peregrine_router::MethodSet as Bits;
use std::collections::{BTreeSet, HashMap};
use std::rc::Rc;

/// Returns the methods that each entry answers: its own, and HEAD if it answers GET. An `any` entry
/// answers the methods that no other entry with the same shape and conditions answers.
pub(crate) fn method_sets(
    entries: &[Box<RouteEntry>],
    index: &mut MethodIndex,
    slash_policy: TrailingSlash,
) -> Result<Vec<Bits>, BuildErrorKind> {
    let mut own = Vec::with_capacity(entries.len());
    let mut taken: HashMap<String, Bits> = HashMap::new();
    for entry in entries {
        let bits = match &entry.methods {
            MethodFilter::Any => Bits::NONE,
            MethodFilter::One(method) => Bits::single(index.add(method).ok_or_else(|| BuildErrorKind::LimitExceeded {
                message: format!(
                    "{} is one method too many: an application can name {EXTENSION_METHODS_MAX} \
                     extension methods; use `any` for some and check the method in the handler",
                    entry.name()
                ),
            })?),
        };
        // Routes with different guards do not take methods from each other: they are checked in
        // order.
        let asked = overlap_key(entry, slash_policy);
        let all = taken.entry(asked.clone()).or_default();
        *all = all.union(bits);
        own.push((asked, bits));
    }
    let (get, head) = (Bits::single(KnownMethod::Get as u8), Bits::single(KnownMethod::Head as u8));
    let with_head =
        |bits: Bits| if bits.contains(KnownMethod::Get as u8) { bits.union(head) } else { bits };
    Ok(own
        .into_iter()
        .map(|(asked, bits)| {
            let taken = taken[&asked];
            if bits.is_empty() {
                Bits::from_bits(!with_head(taken).bits())
            } else if bits == get && !taken.contains(KnownMethod::Head as u8) {
                with_head(bits)
            } else {
                bits
            }
        })
        .collect())
}

/// The shape of the entry's pattern and its conditions; equal for entries that answer the same
/// requests.
fn overlap_key(entry: &RouteEntry, slash_policy: TrailingSlash) -> String {
    let mut asked = pattern_shape(&entry.pattern, slash_policy);
    for condition in condition_keys(entry) {
        // A path contains no question mark.
        asked += &format!("?{condition}");
    }
    asked
}

/// The entry's conditions as text; equal text means equal conditions.
fn condition_keys(entry: &RouteEntry) -> BTreeSet<String> {
    let mut all = BTreeSet::new();
    for (place, name) in parameter_names(&entry.pattern).into_iter().enumerate() {
        let typed = entry.typed_parameters.iter().filter(|(typed, _)| typed == name);
        all.extend(typed.map(|(_, kind)| format!("{place}:{}", kind.name)));
    }
    all.extend(entry.guards.iter().map(|guard| match guard.equality_key() {
        Some(identity) => identity.into_owned(),
        None => format!("{:p}", Rc::as_ptr(guard).cast::<()>()),
    }));
    all
}

/// Reports guarded routes that are unreachable because a route checked earlier accepts every
/// request that they accept. `order` is the order in which routes are checked.
pub(crate) fn find_shadowed(
    entries: &[Box<RouteEntry>],
    order: &[(u32, Bits)],
    slash_policy: TrailingSlash,
    faults: &mut Vec<BuildErrorKind>,
) {
    // For each shape, the earlier routes with their methods and conditions.
    type Earlier<'e> = (&'e RouteEntry, Bits, BTreeSet<String>);
    let mut before: HashMap<String, Vec<Earlier<'_>>> = HashMap::new();
    for (id, bits) in order {
        let entry = &*entries[*id as usize];
        if !entry.is_guarded() {
            continue;
        }
        let conditions = condition_keys(entry);
        let others = before.entry(pattern_shape(&entry.pattern, slash_policy)).or_default();
        let takes_all = |(_, taken, fewer): &&Earlier<'_>| {
            bits.intersection(*taken) == *bits && fewer.is_subset(&conditions)
        };
        if let Some((first, ..)) = others.iter().find(takes_all) {
            // One call may add several patterns, and a slash twin: these do not conflict with each
            // other.
            let is_other = first.location != entry.location || first.pattern == entry.pattern;
            if is_other && !entry.is_slash_variant {
                let (first, second) = (first.name(), entry.name());
                faults.push(BuildErrorKind::Shadowed { first, second });
            }
        }
        others.push((entry, *bits, conditions));
    }
}

/// The pattern with the names of its parameters removed.
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

pub(crate) fn parameter_names(pattern: &str) -> Vec<&str> {
    let mut names = Vec::new();
    let mut rest = pattern;
    while let Some((_, name, after)) = next_parameter(rest) {
        names.push(name.trim_start_matches('*'));
        rest = after;
    }
    names
}
