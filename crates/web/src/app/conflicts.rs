//! Compares routes of the same path: which methods each one answers, and which routes are
//! unreachable.

use crate::app::SlashPolicy;
use crate::app::builder::Entry;
use crate::app::error::Fault;
use crate::app::pattern::next_hole;
use crate::app::route_table::{EXTENSIONS_MAX, MethodIndex, Methods};
use peregrine_proto::Method as Known;
use peregrine_router::Methods as Bits;
use std::collections::{BTreeSet, HashMap};
use std::rc::Rc;

/// Returns the methods that each entry answers: its own, and HEAD if it answers GET. An `any` entry
/// answers the methods that no other entry with the same shape and conditions answers.
pub(crate) fn method_bits(
    entries: &[Box<Entry>],
    index: &mut MethodIndex,
    slash_policy: SlashPolicy,
) -> Result<Vec<Bits>, Fault> {
    let mut own = Vec::with_capacity(entries.len());
    let mut taken: HashMap<String, Bits> = HashMap::new();
    for entry in entries {
        let bits = match &entry.methods {
            Methods::Any => Bits::NONE,
            Methods::One(method) => Bits::of(index.add(method).ok_or_else(|| Fault::TooMany {
                what: format!(
                    "{} is one method too many: an application can name {EXTENSIONS_MAX} \
                     extension methods; use `any` for some and check the method in the handler",
                    entry.name()
                ),
            })?),
        };
        // Routes with different guards do not take methods from each other: they are checked in
        // order.
        let asked = asked(entry, slash_policy);
        let all = taken.entry(asked.clone()).or_default();
        *all = all.union(bits);
        own.push((asked, bits));
    }
    let (get, head) = (Bits::of(Known::Get as u8), Bits::of(Known::Head as u8));
    let with_head =
        |bits: Bits| if bits.contains(Known::Get as u8) { bits.union(head) } else { bits };
    Ok(own
        .into_iter()
        .map(|(asked, bits)| {
            let taken = taken[&asked];
            if bits.is_empty() {
                Bits::from_bits(!with_head(taken).bits())
            } else if bits == get && !taken.contains(Known::Head as u8) {
                with_head(bits)
            } else {
                bits
            }
        })
        .collect())
}

/// The shape of the entry's pattern and its conditions; equal for entries that answer the same
/// requests.
fn asked(entry: &Entry, slash_policy: SlashPolicy) -> String {
    let mut asked = shape(&entry.pattern, slash_policy);
    for condition in asked_for(entry) {
        // A path contains no question mark.
        asked += &format!("?{condition}");
    }
    asked
}

/// The entry's conditions as text; equal text means equal conditions.
fn asked_for(entry: &Entry) -> BTreeSet<String> {
    let mut all = BTreeSet::new();
    for (place, name) in parameter_names(&entry.pattern).into_iter().enumerate() {
        let typed = entry.typed.iter().filter(|(typed, _)| typed == name);
        all.extend(typed.map(|(_, kind)| format!("{place}:{}", kind.name)));
    }
    all.extend(entry.guards.iter().map(|guard| match guard.identity() {
        Some(identity) => identity.into_owned(),
        None => format!("{:p}", Rc::as_ptr(guard).cast::<()>()),
    }));
    all
}

/// Reports guarded routes that are unreachable because a route checked earlier accepts every
/// request that they accept. `order` is the order in which routes are checked.
pub(crate) fn hidden(
    entries: &[Box<Entry>],
    order: &[(u32, Bits)],
    slash_policy: SlashPolicy,
    faults: &mut Vec<Fault>,
) {
    // For each shape, the earlier routes with their methods and conditions.
    type Earlier<'e> = (&'e Entry, Bits, BTreeSet<String>);
    let mut before: HashMap<String, Vec<Earlier<'_>>> = HashMap::new();
    for (id, bits) in order {
        let entry = &*entries[*id as usize];
        if !entry.is_guarded() {
            continue;
        }
        let conditions = asked_for(entry);
        let others = before.entry(shape(&entry.pattern, slash_policy)).or_default();
        let takes_all = |(_, taken, fewer): &&Earlier<'_>| {
            bits.intersection(*taken) == *bits && fewer.is_subset(&conditions)
        };
        if let Some((first, ..)) = others.iter().find(takes_all) {
            // One call may add several patterns, and a slash twin: these do not conflict with each
            // other.
            let is_other = first.place != entry.place || first.pattern == entry.pattern;
            if is_other && !entry.is_slash_twin {
                let (first, second) = (first.name(), entry.name());
                faults.push(Fault::Hidden { first, second });
            }
        }
        others.push((entry, *bits, conditions));
    }
}

/// The pattern with the names of its parameters removed.
fn shape(pattern: &str, slash_policy: SlashPolicy) -> String {
    let mut shape = String::with_capacity(pattern.len());
    let mut rest = pattern;
    while let Some((before, name, after)) = next_hole(rest) {
        shape.push_str(before);
        shape.push_str(if name.starts_with('*') { "{*}" } else { "{}" });
        rest = after;
    }
    shape.push_str(rest);
    if slash_policy == SlashPolicy::Ignore && shape.len() > 1 && shape.ends_with('/') {
        shape.pop();
    }
    shape
}

pub(crate) fn parameter_names(pattern: &str) -> Vec<&str> {
    let mut names = Vec::new();
    let mut rest = pattern;
    while let Some((_, name, after)) = next_hole(rest) {
        names.push(name.trim_start_matches('*'));
        rest = after;
    }
    names
}
