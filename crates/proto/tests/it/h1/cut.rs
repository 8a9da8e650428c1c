//! The central property: the events do not depend on how the same bytes are split.

use super::cases::{limits, requests, server};
use super::play::{ResponseTiming, Server, play};
use peregrine_proto::Limits;
use proptest::prelude::*;

/// Requests of all kinds, concatenated to pipelines.
fn pipeline() -> impl Strategy<Value = Vec<u8>> {
    let cases: Vec<Vec<u8>> = requests()
        .iter()
        .map(|(_, case)| case.bytes("send"))
        .filter(|bytes| bytes.len() < 2000)
        .collect();
    let case = (0..cases.len()).prop_map(move |at| cases[at].clone());
    proptest::collection::vec(case, 1..5).prop_map(|parts| parts.concat())
}

/// A few bytes changed, inserted, or removed.
fn mutated() -> impl Strategy<Value = Vec<u8>> {
    let byte =
        prop_oneof![prop::sample::select(b"\r\n :;,=\"\\\0\t0aA/?#%[]*".to_vec()), any::<u8>()];
    let mutation = (any::<prop::sample::Index>(), 0..3_u8, byte);
    (pipeline(), proptest::collection::vec(mutation, 0..6)).prop_map(|(mut bytes, mutations)| {
        for (at, kind, byte) in mutations {
            if bytes.is_empty() {
                break;
            }
            let at = at.index(bytes.len());
            match kind {
                0 => bytes[at] = byte,
                1 => bytes.insert(at, byte),
                _ => drop(bytes.remove(at)),
            }
        }
        bytes
    })
}

fn small_limits() -> Limits {
    Limits {
        head_bytes_max: 200,
        request_line_bytes_max: 60,
        field_bytes_max: 80,
        fields_max: 5,
        body_bytes_max: 100,
        chunk_extension_bytes_max: 20,
        trailer_bytes_max: 60,
        drain_bytes_max: 20,
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 2000, ..ProptestConfig::default() })]

    #[test]
    fn events_do_not_depend_on_how_bytes_are_split(
        bytes in prop_oneof![pipeline(), mutated()],
        cuts in proptest::collection::vec(any::<prop::sample::Index>(), 0..8),
        timing in prop_oneof![
            Just(ResponseTiming::RequestComplete),
            Just(ResponseTiming::Early),
            Just(ResponseTiming::EarlyDiscardingBody),
        ],
        is_secure: bool,
        small: bool,
    ) {
        let limits = if small { small_limits() } else { Limits::DEFAULT };
        let server = Server { timing, is_secure };
        let mut cuts: Vec<usize> = cuts.iter().map(|cut| cut.index(bytes.len() + 1)).collect();
        cuts.sort_unstable();
        let expected = play(&limits, &bytes, &[], server);
        prop_assert_eq!(&play(&limits, &bytes, &cuts, server), &expected);
        let single: Vec<usize> = (0..bytes.len()).collect();
        prop_assert_eq!(&play(&limits, &bytes, &single, server), &expected);
    }
}

#[test]
fn splitting_a_case_anywhere_gives_the_same_events() {
    for (file, case) in requests() {
        let (limits, bytes) = (limits(&case), case.bytes("send"));
        if bytes.len() > 2000 {
            continue;
        }
        let default_server = server(&case);
        let early = Server { timing: ResponseTiming::Early, ..default_server };
        let unwanted = Server { timing: ResponseTiming::EarlyDiscardingBody, ..default_server };
        for server in [default_server, early, unwanted] {
            let expected = play(&limits, &bytes, &[], server);
            for cut in 0..=bytes.len() {
                let name = case.text("case").unwrap();
                let events = play(&limits, &bytes, &[cut], server);
                assert_eq!(events, expected, "{file}: {name}, cut at {cut}");
            }
        }
    }
}
