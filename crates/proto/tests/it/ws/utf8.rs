//! Incremental validation of UTF-8, compared with std.

use peregrine_proto::ws::Utf8Validator;
use proptest::prelude::*;

/// Whether a text can begin with these bytes: std accepts them, or only misses the end.
fn may_begin(bytes: &[u8]) -> bool {
    std::str::from_utf8(bytes).map_or_else(|error| error.error_len().is_none(), |_| true)
}

fn assert_as_std(bytes: &[u8], cuts: &[usize]) {
    let (mut check, mut from) = (Utf8Validator::new(), 0);
    for to in cuts.iter().copied().chain([bytes.len()]) {
        let goes_on = check.check(&bytes[from..to]);
        assert_eq!(goes_on, may_begin(&bytes[..to]), "{bytes:x?} up to {to}");
        if !goes_on {
            return;
        }
        from = to;
    }
    assert_eq!(check.is_complete(), std::str::from_utf8(bytes).is_ok(), "{bytes:x?}");
}

#[test]
fn every_three_bytes_at_the_edges_of_the_grammar_are_judged_as_std_does_byte_by_byte() {
    let edges = [
        0, 0x7F, 0x80, 0x8F, 0x90, 0x9F, 0xA0, 0xBF, 0xC0, 0xC1, 0xC2, 0xDF, 0xE0, 0xE1, 0xEC,
        0xED, 0xEE, 0xEF, 0xF0, 0xF1, 0xF3, 0xF4, 0xF5, 0xFF,
    ];
    for first in edges {
        for second in edges {
            for third in edges {
                for fourth in edges {
                    let bytes = [first, second, third, fourth];
                    assert_as_std(&bytes, &[1, 2, 3]);
                    assert_as_std(&bytes, &[2]);
                }
            }
        }
    }
}

proptest! {
    #[test]
    fn any_bytes_in_any_pieces_are_judged_as_std_does(
        text in ".{0,40}",
        changes in proptest::collection::vec((any::<prop::sample::Index>(), any::<u8>()), 0..3),
        cuts in proptest::collection::vec(any::<prop::sample::Index>(), 0..8),
    ) {
        let mut bytes = text.into_bytes();
        for (at, byte) in changes {
            let at = at.index(bytes.len() + 1);
            bytes.insert(at, byte);
        }
        let mut cuts: Vec<_> = cuts.iter().map(|cut| cut.index(bytes.len() + 1)).collect();
        cuts.sort_unstable();
        assert_as_std(&bytes, &cuts);
    }
}
