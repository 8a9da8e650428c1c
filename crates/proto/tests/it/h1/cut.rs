//! The central property: any cut of the same bytes gives the same events.

use super::cases::{limits, requests, server};
use super::play::{Answer, Server, play};
use peregrine_proto::Limits;
use proptest::prelude::*;

/// Requests of all kinds, joined to pipelines.
fn pipeline() -> impl Strategy<Value = Vec<u8>> {
    let cases: Vec<Vec<u8>> = requests()
        .iter()
        .map(|(_, case)| case.bytes("send"))
        .filter(|bytes| bytes.len() < 2000)
        .collect();
    let one = (0..cases.len()).prop_map(move |at| cases[at].clone());
    proptest::collection::vec(one, 1..5).prop_map(|parts| parts.concat())
}

/// A few bytes changed, inserted, or removed.
fn mutated() -> impl Strategy<Value = Vec<u8>> {
    let byte =
        prop_oneof![prop::sample::select(b"\r\n :;,=\"\\\0\t0aA/?#%[]*".to_vec()), any::<u8>()];
    let change = (any::<prop::sample::Index>(), 0..3_u8, byte);
    (pipeline(), proptest::collection::vec(change, 0..6)).prop_map(|(mut bytes, changes)| {
        for (at, kind, byte) in changes {
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
    fn any_cut_gives_the_same_events(
        bytes in prop_oneof![pipeline(), mutated()],
        cuts in proptest::collection::vec(any::<prop::sample::Index>(), 0..8),
        answer in prop_oneof![Just(Answer::Late), Just(Answer::Early), Just(Answer::Unwanted)],
        is_secure: bool,
        small: bool,
    ) {
        let limits = if small { small_limits() } else { Limits::DEFAULT };
        let server = Server { answer, is_secure };
        let mut cuts: Vec<usize> = cuts.iter().map(|cut| cut.index(bytes.len() + 1)).collect();
        cuts.sort_unstable();
        let whole = play(&limits, &bytes, &[], server);
        prop_assert_eq!(&play(&limits, &bytes, &cuts, server), &whole);
        let single: Vec<usize> = (0..bytes.len()).collect();
        prop_assert_eq!(&play(&limits, &bytes, &single, server), &whole);
    }
}

#[test]
fn every_cut_in_two_of_every_case_gives_the_same_events() {
    for (file, case) in requests() {
        let (limits, bytes) = (limits(&case), case.bytes("send"));
        if bytes.len() > 2000 {
            continue;
        }
        let own = server(&case);
        let early = Server { answer: Answer::Early, ..own };
        let unwanted = Server { answer: Answer::Unwanted, ..own };
        for server in [own, early, unwanted] {
            let whole = play(&limits, &bytes, &[], server);
            for cut in 0..=bytes.len() {
                let name = case.text("case").unwrap();
                let cut_in_two = play(&limits, &bytes, &[cut], server);
                assert_eq!(cut_in_two, whole, "{file}: {name}, cut at {cut}");
            }
        }
    }
}
