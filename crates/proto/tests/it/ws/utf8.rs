//! Incremental validation of UTF-8, compared with std.

use peregrine_proto::ws::Utf8Validator;
use proptest::prelude::*;

/// Returns whether a text can begin with these bytes: std accepts them, or reports that they end
/// within a character.
fn is_valid_prefix(bytes: &[u8]) -> bool {
    std::str::from_utf8(bytes).map_or_else(|error| error.error_len().is_none(), |_| true)
}

fn assert_matches_std(bytes: &[u8], cuts: &[usize]) {
    let (mut validator, mut start) = (Utf8Validator::new(), 0);
    for end in cuts.iter().copied().chain([bytes.len()]) {
        let is_valid = validator.check(&bytes[start..end]);
        assert_eq!(is_valid, is_valid_prefix(&bytes[..end]), "{bytes:x?} up to {end}");
        if !is_valid {
            return;
        }
        start = end;
    }
    assert_eq!(validator.is_complete(), std::str::from_utf8(bytes).is_ok(), "{bytes:x?}");
}

#[test]
fn bytes_at_the_edges_of_the_grammar_are_validated_as_by_std() {
    let edges = [
        0, 0x7F, 0x80, 0x8F, 0x90, 0x9F, 0xA0, 0xBF, 0xC0, 0xC1, 0xC2, 0xDF, 0xE0, 0xE1, 0xEC,
        0xED, 0xEE, 0xEF, 0xF0, 0xF1, 0xF3, 0xF4, 0xF5, 0xFF,
    ];
    for first in edges {
        for second in edges {
            for third in edges {
                for fourth in edges {
                    let bytes = [first, second, third, fourth];
                    assert_matches_std(&bytes, &[1, 2, 3]);
                    assert_matches_std(&bytes, &[2]);
                }
            }
        }
    }
}

proptest! {
    #[test]
    fn arbitrary_split_bytes_are_validated_as_by_std(
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
        assert_matches_std(&bytes, &cuts);
    }
}
