use super::*;
use std::collections::HashSet;
use std::iter::empty;

const VALID: &str = "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01";

fn parse(traceparent: &str) -> Option<TraceContext> {
    TraceContext::parse(traceparent.as_bytes(), empty())
}

#[test]
fn parses_and_formats_a_traceparent() {
    let context = parse(VALID).expect("the example of the standard is valid");
    assert!(context.is_sampled());
    assert_eq!(context.traceparent(), VALID);
    assert_eq!((context.trace_id()[0], context.span_id()[7]), (0x4b, 0xb7));
    let unsampled = VALID.replace("-01", "-00");
    assert_eq!(parse(&unsampled).map(|context| context.is_sampled()), Some(false));
}

#[test]
fn rejects_an_invalid_traceparent() {
    for (text, reason) in [
        ("", "it is empty"),
        ("00", "it is a version only"),
        (&VALID[..54], "a digit is missing"),
        (&format!("{VALID}0"), "a digit too many"),
        (&format!("{VALID}-"), "version 00 ends there"),
        (&format!("{VALID}-00"), "version 00 has no more"),
        (&format!(" {VALID}"), "it begins with a space"),
        (&format!("ff{}", &VALID[2..]), "version ff is forbidden"),
        (&format!("cc{}.", &VALID[2..]), "a later version continues after a dash"),
        (&format!("0g{}", &VALID[2..]), "no digit in the version"),
        (&VALID.to_uppercase(), "upper-case digits"),
        (&VALID.replace("4bf9", "4Bf9"), "an upper-case digit"),
        (&VALID.replace("4bf9", "4bg9"), "no digit in the trace's ID"),
        (&VALID.replace("00f0", "00x0"), "no digit in the span's ID"),
        (&VALID.replace("-01", "-0x"), "no digit in the flags"),
        (&VALID.replace("-01", "_01"), "another separator"),
        (&VALID.replacen('-', "_", 1), "another separator after the version"),
        ("00-00000000000000000000000000000000-00f067aa0ba902b7-01", "no trace"),
        ("00-4bf92f3577b34da6a3ce929d0e0e4736-0000000000000000-01", "no span"),
        ("00-4bf92f3577b34da6a3ce929d0e0e473-00f067aa0ba902b7-011", "IDs of other lengths"),
    ] {
        assert_eq!(parse(text), None, "{reason}: {text}");
    }
}

#[test]
fn parses_later_versions_and_formats_them_as_version_00() {
    for text in [
        format!("cc{}", &VALID[2..]),
        format!("cc{}-", &VALID[2..]),
        format!("cc{}-what-the-future-will-be-like", &VALID[2..]),
        format!("01{}", &VALID[2..]),
    ] {
        let context = parse(&text).unwrap_or_else(|| panic!("{text}"));
        assert_eq!(context.traceparent(), VALID, "{text}");
    }
}

#[test]
fn drops_unknown_flags() {
    for (flags, expected) in [("ff", "03"), ("02", "02"), ("fc", "00"), ("09", "01")] {
        let text = VALID.replace("-01", &format!("-{flags}"));
        let context = parse(&text).expect("any flags are valid");
        assert!(context.traceparent().ends_with(&format!("-{expected}")), "{flags}: {context:?}");
    }
}

#[test]
fn keeps_a_valid_tracestate_and_drops_an_invalid_one() {
    let state = |fields: &[&str]| {
        let fields = fields.iter().map(|field| field.as_bytes());
        let context = TraceContext::parse(VALID.as_bytes(), fields).expect("the parent is valid");
        context.state().map(str::to_owned)
    };
    let members = |count: usize| {
        (0..count).map(|number| format!("k{number}=1")).collect::<Vec<_>>().join(",")
    };
    let (key, value) = ("k".repeat(256), "v".repeat(256));
    for (fields, expected) in [
        (&["rojo=00f067aa0ba902b7"][..], Some("rojo=00f067aa0ba902b7")),
        (&["a=1,b=2", "c=3"], Some("a=1,b=2,c=3")),
        (&["a=1 ,\t b=2"], Some("a=1,b=2")),
        (&["a=1,,b=2,"], Some("a=1,b=2")),
        (&["t61rcWkgMzE@x=1"], None),
        (&["0tenant@system=x y"], Some("0tenant@system=x y")),
        (
            &["a_-*/9=!\"#$%&'()*+-./:;<>?@[\\]^_`{|}~"],
            Some("a_-*/9=!\"#$%&'()*+-./:;<>?@[\\]^_`{|}~"),
        ),
        (&[], None),
        (&[""], None),
        (&["a"], None),
        (&["a="], None),
        (&["=1"], None),
        (&["a=1=2"], None),
        (&["A=1"], None),
        (&["0a=1"], None),
        (&["a b=1"], None),
        (&["a@=1"], None),
        (&["@b=1"], None),
        (&["a@b@c=1"], None),
        (&["a=1,a=2"], None),
        (&["a=1", "a=2"], None),
        (&["a=\u{e9}"], None),
        (&["a=x\ty"], None),
        (&[&members(32)], Some(&*members(32))),
        (&[&members(33)], None),
        (&[&format!("{key}={value}")], Some(&*format!("{key}={value}"))),
        (&[&format!("{key}k=1")], None),
        (&[&format!("a={value}v")], None),
    ] {
        assert_eq!(state(fields).as_deref(), expected, "{fields:?}");
    }
}

#[test]
fn injects_the_trace_into_outgoing_requests() {
    let fields = [&b"a=1"[..]];
    let parent = TraceContext::parse(VALID.as_bytes(), fields).expect("the fields are valid");
    let child = parent.child([7; 8], false);
    let mut headers = HeaderMap::new();
    headers.append(TRACEPARENT, HeaderValue::from_static("another"));
    child.inject(&mut headers);
    let expected = "00-4bf92f3577b34da6a3ce929d0e0e4736-0707070707070707-00";
    assert_eq!(headers.get_all(TRACEPARENT).iter().collect::<Vec<_>>(), [expected]);
    assert_eq!(headers.get(TRACESTATE).map(|value| value.as_bytes()), Some(&b"a=1"[..]));
    let root = TraceContext::root([1; 16], [2; 8], true).expect("the IDs are not zero");
    root.inject(&mut headers);
    assert_eq!(headers.get(TRACESTATE), None);
    assert_eq!(TraceContext::root([0; 16], [2; 8], true), None);
}

#[test]
fn a_context_is_current_until_its_guard_is_dropped() {
    let outer = TraceSeed::new(1).root(true);
    let inner = LazyTraceContext::Unsampled(TraceSeed::new(2));
    assert_eq!((TraceContext::current(), is_unsampled()), (None, false));
    let guard = enter(&LazyTraceContext::Computed(Rc::new(outer.clone())));
    {
        let _guard = enter(&inner);
        assert_eq!(TraceContext::current(), Some(inner.context()));
        assert!(is_unsampled());
    }
    assert_eq!((TraceContext::current(), is_unsampled()), (Some(outer), false));
    drop(guard);
    assert_eq!(TraceContext::current(), None);
}

#[test]
fn a_seed_determines_its_ids_and_seeds_do_not_share_ids() {
    let mut seed = TraceSeed::new(u64::MAX - 5);
    let (mut traces, mut spans) = (HashSet::new(), HashSet::new());
    for _ in 0..10_000 {
        seed = seed.next();
        let context = LazyTraceContext::Unsampled(seed).context();
        assert_eq!(LazyTraceContext::Unsampled(seed).context(), context);
        assert_eq!(context.flags(), FLAG_RANDOM);
        assert!(traces.insert(context.trace_id()) && spans.insert(context.span_id()));
        let [first, last] = [0, 8].map(|start| context.trace_id()[start..start + 8].to_vec());
        assert_eq!(last, seed.sampling_number().to_be_bytes());
        assert!(first != last && last != context.span_id());
    }
}
