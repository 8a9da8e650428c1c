//! Fuzzes trace contexts: the first line is a `traceparent`, further lines are `tracestate`.

use peregrine_web::trace::TraceContext;

/// A context that is accepted is valid according to a slow, literal parser, and survives a round
/// trip.
///
/// # Panics
/// If it is not valid, or does not survive.
pub fn trace(data: &[u8]) {
    let mut lines = data.split(|byte| *byte == b'\n');
    let (parent, states) = (lines.next().unwrap_or_default(), lines);
    let states: Vec<_> = states.collect();
    let context = TraceContext::parse(parent, states.iter().copied());
    assert_eq!(context.is_some(), is_valid(parent), "{:?}", String::from_utf8_lossy(parent));
    let Some(context) = context else { return };
    let text = context.traceparent();
    let reparsed = TraceContext::parse(text.as_bytes(), context.state().map(str::as_bytes));
    assert_eq!(reparsed.as_ref(), Some(&context));
    assert!(context.trace_id() != [0; 16] && context.span_id() != [0; 8]);
    // Values that are set in fields must be valid.
    context.inject(&mut http::HeaderMap::new());
    let state = context.state().unwrap_or_default();
    assert!(
        state.split(',').count() <= 32 && state.bytes().all(|byte| (b' '..=b'~').contains(&byte))
    );
}

/// A literal implementation of the standard, part by part.
fn is_valid(parent: &[u8]) -> bool {
    // A later version may append anything.
    let text = String::from_utf8_lossy(parent);
    let parts: Vec<_> = text.splitn(5, '-').collect();
    let [version, trace, span, flags, further_parts @ ..] = &parts[..] else { return false };
    let is_hex = |part: &str, digits: usize| {
        part.len() == digits && part.chars().all(|digit| "0123456789abcdef".contains(digit))
    };
    is_hex(version, 2)
        && *version != "ff"
        && is_hex(trace, 32)
        && trace.contains(|digit| digit != '0')
        && is_hex(span, 16)
        && span.contains(|digit| digit != '0')
        && is_hex(flags, 2)
        && (further_parts.is_empty() || *version != "00")
}

/// The initial inputs for mutation.
pub(crate) fn seeds() -> Vec<Vec<u8>> {
    let valid = "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01";
    let states = [
        "",
        "\na=1",
        "\na=1,b=2",
        "\na=1\nb=2",
        "\nt@s=x y,c=!",
        "\na=1,,b=2",
        "\na=",
        "\nA=1",
        "\na=1,a=2",
    ];
    let parents = [
        valid.to_owned(),
        format!("cc{}-m\u{f6}re", &valid[2..]),
        format!("ff{}", &valid[2..]),
        valid.to_uppercase(),
    ];
    let seed = |parent: &String| states.map(|state| format!("{parent}{state}").into_bytes());
    parents.iter().flat_map(seed).collect()
}
