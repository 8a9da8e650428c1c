//! HPACK: the standard's examples, an oracle in both directions, and its limits.

use peregrine_proto::KnownField;
use peregrine_proto::h2::Http2Error;
use peregrine_proto::h2::hpack::{Decoder, Encoder, Field, FieldSink};
use proptest::prelude::*;

type Pair = (Vec<u8>, Vec<u8>);

/// Collects a limited number of fields.
struct FieldCollector {
    fields: Vec<Pair>,
    fields_max: usize,
}

impl FieldSink for FieldCollector {
    fn field(&mut self, field: Field<'_>) -> bool {
        self.fields.push((field.name.to_vec(), field.value.to_vec()));
        self.fields.len() < self.fields_max
    }
}

const BYTES_MAX: usize = 1 << 20;

fn decode(decoder: &mut Decoder, block: &[u8]) -> Result<Vec<Pair>, Http2Error> {
    let mut collector = FieldCollector { fields: Vec::new(), fields_max: usize::MAX };
    let bytes = decoder.decode(block, BYTES_MAX, &mut collector)?;
    decoder.assert_invariants();
    let sizes = collector.fields.iter().map(|(name, value)| name.len() + value.len() + 32);
    assert_eq!(bytes, sizes.sum::<usize>());
    Ok(collector.fields)
}

fn encode(encoder: &mut Encoder, fields: &[Pair]) -> Vec<u8> {
    let mut out = Vec::new();
    encoder.begin_block(&mut out);
    for (name, value) in fields {
        encoder.field(KnownField::from_name(name), name, value, &mut out);
    }
    encoder.assert_invariants();
    out
}

fn hex(text: &str) -> Vec<u8> {
    let digits: Vec<u8> = text.bytes().filter(|byte| !byte.is_ascii_whitespace()).collect();
    let byte = |pair: &[u8]| u8::from_str_radix(std::str::from_utf8(pair).unwrap(), 16).unwrap();
    digits.chunks(2).map(byte).collect()
}

fn pairs(text: &str) -> Vec<Pair> {
    let pair = |line: &str| {
        let (name, value) = line.trim().split_once(": ").unwrap();
        (name.as_bytes().to_vec(), value.as_bytes().to_vec())
    };
    text.lines().filter(|line| !line.trim().is_empty()).map(pair).collect()
}

const GET: &str = ":method: GET\n:scheme: http\n:path: /\n:authority: www.example.com";
const CUSTOM: &str = ":method: GET\n:scheme: https\n:path: /index.html\n\
    :authority: www.example.com\ncustom-key: custom-value";
const FOUND: &str = "cache-control: private\ndate: Mon, 21 Oct 2013 20:13:21 GMT\n\
    location: https://www.example.com";
const OK: &str = ":status: 200\ncache-control: private\ndate: Mon, 21 Oct 2013 20:13:22 GMT\n\
    location: https://www.example.com\ncontent-encoding: gzip\n\
    set-cookie: foo=ASDJKHQKBZXOQWEOPIUAXQWEOIU; max-age=3600; version=1";

// RFC 7541 C.2 to C.6.
#[test]
fn decodes_the_examples_of_rfc_7541() {
    let single = [
        (
            "400a 6375 7374 6f6d 2d6b 6579 0d63 7573 746f 6d2d 6865 6164 6572",
            "custom-key: custom-header",
            55,
        ),
        ("040c 2f73 616d 706c 652f 7061 7468", ":path: /sample/path", 0),
        ("1008 7061 7373 776f 7264 0673 6563 7265 74", "password: secret", 0),
        ("82", ":method: GET", 0),
    ];
    for (block, fields, size) in single {
        let mut decoder = Decoder::new();
        assert_eq!(decode(&mut decoder, &hex(block)).unwrap(), pairs(fields));
        assert_eq!(decoder.table_bytes(), size);
    }
    let second = format!("{GET}\ncache-control: no-cache");
    let requests = [
        [
            "8286 8441 0f77 7777 2e65 7861 6d70 6c65 2e63 6f6d",
            "8286 84be 5808 6e6f 2d63 6163 6865",
            "8287 85bf 400a 6375 7374 6f6d 2d6b 6579 0c63 7573 746f 6d2d 7661 6c75 65",
        ],
        [
            "8286 8441 8cf1 e3c2 e5f2 3a6b a0ab 90f4 ff",
            "8286 84be 5886 a8eb 1064 9cbf",
            "8287 85bf 4088 25a8 49e9 5ba9 7d7f 8925 a849 e95b b8e8 b4bf",
        ],
    ];
    for blocks in requests {
        let mut decoder = Decoder::new();
        let expected = [(GET, 57), (&second, 110), (CUSTOM, 164)];
        for (block, (fields, size)) in blocks.iter().zip(expected) {
            assert_eq!(decode(&mut decoder, &hex(block)).unwrap(), pairs(fields));
            assert_eq!(decoder.table_bytes(), size);
        }
    }
    let (first, second) = (format!(":status: 302\n{FOUND}"), format!(":status: 307\n{FOUND}"));
    let responses = [
        [
            "4803 3330 3258 0770 7269 7661 7465 611d 4d6f 6e2c 2032 3120 4f63 7420 3230 3133 2032 303a \
          3133 3a32 3120 474d 546e 1768 7474 7073 3a2f 2f77 7777 2e65 7861 6d70 6c65 2e63 6f6d",
            "4803 3330 37c1 c0bf",
            "88c1 611d 4d6f 6e2c 2032 3120 4f63 7420 3230 3133 2032 303a 3133 3a32 3220 474d 54c0 5a04 \
          677a 6970 7738 666f 6f3d 4153 444a 4b48 514b 425a 584f 5157 454f 5049 5541 5851 5745 4f49 \
          553b 206d 6178 2d61 6765 3d33 3630 303b 2076 6572 7369 6f6e 3d31",
        ],
        [
            "4882 6402 5885 aec3 771a 4b61 96d0 7abe 9410 54d4 44a8 2005 9504 0b81 66e0 82a6 2d1b ff6e \
          919d 29ad 1718 63c7 8f0b 97c8 e9ae 82ae 43d3",
            "4883 640e ffc1 c0bf",
            "88c1 6196 d07a be94 1054 d444 a820 0595 040b 8166 e084 a62d 1bff c05a 839b d9ab 77ad 94e7 \
          821d d7f2 e6c7 b335 dfdf cd5b 3960 d5af 2708 7f36 72c1 ab27 0fb5 291f 9587 3160 65c0 03ed \
          4ee5 b106 3d50 07",
        ],
    ];
    for blocks in responses {
        let mut decoder = Decoder::new();
        // The examples use a table of 256 bytes.
        decode(&mut decoder, &hex("3fe1 01")).unwrap();
        let expected = [(first.as_str(), 222), (second.as_str(), 222), (OK, 215)];
        for (block, (fields, size)) in blocks.iter().zip(expected) {
            assert_eq!(decode(&mut decoder, &hex(block)).unwrap(), pairs(fields));
            assert_eq!(decoder.table_bytes(), size);
        }
    }
}

#[test]
fn malformed_blocks_are_rejected() {
    let cases = [
        ("80", Http2Error::IndexInvalid),
        ("be", Http2Error::IndexInvalid),
        ("7e 00", Http2Error::IndexInvalid),
        ("ff ff ff ff ff 7f", Http2Error::IntegerTooLarge),
        ("ff 80 80 80 80 80 00", Http2Error::IntegerTooLarge),
        ("ff", Http2Error::HeaderBlockTruncated),
        ("40", Http2Error::HeaderBlockTruncated),
        ("40 02 61", Http2Error::HeaderBlockTruncated),
        ("40 01 61", Http2Error::HeaderBlockTruncated),
        ("40 01 61 02 62", Http2Error::HeaderBlockTruncated),
        ("40 81 ff 00", Http2Error::HuffmanInvalid),
        ("40 01 61 84 ff ff ff ff", Http2Error::HuffmanInvalid),
        ("3f e2 1f", Http2Error::SizeUpdateTooLarge),
        ("82 20", Http2Error::SizeUpdateMisplaced),
    ];
    for (block, error) in cases {
        assert_eq!(decode(&mut Decoder::new(), &hex(block)), Err(error), "{block}");
    }
}

#[test]
fn a_smaller_table_must_be_signalled_in_the_next_block() {
    let mut decoder = Decoder::new();
    decoder.set_size_max(100);
    assert_eq!(decode(&mut decoder, &hex("82")), Err(Http2Error::SizeUpdateMissing));
    let mut decoder = Decoder::new();
    decoder.set_size_max(100);
    assert_eq!(decode(&mut decoder, &hex("3f 46")), Err(Http2Error::SizeUpdateTooLarge));
    let mut decoder = Decoder::new();
    decoder.set_size_max(100);
    assert_eq!(decode(&mut decoder, &hex("3f 45 82")).unwrap().len(), 1);
    // A larger size does not have to be signalled.
    decoder.set_size_max(1000);
    assert_eq!(decode(&mut decoder, &hex("82")).unwrap().len(), 1);
}

#[test]
fn bombs_are_rejected_and_skipped_fields_still_fill_the_table() {
    // An entry of some 4,000 bytes, then a reference to it for each byte.
    let mut block = hex("40 01 61 7f 9f 1e");
    block.extend([b'x'; 3998]);
    assert_eq!(decode(&mut Decoder::new(), &block).unwrap().len(), 1);
    block.extend([0xbe; 10_000]);
    assert_eq!(decode(&mut Decoder::new(), &block), Err(Http2Error::HeaderListTooLarge));

    let mut decoder = Decoder::new();
    let mut collector = FieldCollector { fields: Vec::new(), fields_max: 1 };
    decoder.decode(&hex("82 40 01 61 01 62 84"), BYTES_MAX, &mut collector).unwrap();
    assert_eq!(collector.fields.len(), 1);
    assert_eq!(decode(&mut decoder, &[0xbe]).unwrap(), [(b"a".to_vec(), b"b".to_vec())]);
}

#[test]
fn repeated_fields_are_indexed_and_sensitive_ones_never_are() {
    let mut encoder = Encoder::new(4096);
    let fields = pairs("content-type: text/html\nserver: peregrine\nx-own: 1");
    let lengths: Vec<_> = (0..4).map(|_| encode(&mut encoder, &fields).len()).collect();
    assert!(lengths[1] <= lengths[0]);
    assert_eq!(&lengths[2..], [3, 3]);
    for secret in ["set-cookie: a=b", "authorization: c", "cookie: d", "proxy-authorization: e"] {
        for _ in 0..3 {
            let block = encode(&mut encoder, &pairs(secret));
            assert_eq!(block[0] & 0xf0, 0x10, "the field is never indexed");
        }
    }
}

#[test]
fn encoder_follows_and_signals_the_size_limit_of_the_peer() {
    let mut encoder = Encoder::new(2048);
    let fields = pairs("server: peregrine");
    for _ in 0..2 {
        assert_ne!(encode(&mut encoder, &fields)[0] & 0xe0, 0x20, "a smaller table is implied");
    }
    encoder.set_peer_size_limit(0);
    assert_eq!(encode(&mut encoder, &fields)[0], 0x20);
    assert_ne!(encode(&mut encoder, &fields)[0] & 0xe0, 0x20, "signalled only once");
    encoder.set_peer_size_limit(100);
    assert_eq!(&encode(&mut encoder, &fields)[..2], hex("3f 45"));
    // Lowered and raised between two blocks: both are signalled.
    encoder.set_peer_size_limit(10);
    encoder.set_peer_size_limit(4096);
    assert_eq!(&encode(&mut encoder, &fields)[..4], hex("20 3f e1 0f"));
    encoder.shrink();
    assert_eq!(encoder.memory_bytes(), 0);
}

#[test]
fn encoder_and_decoder_stay_in_sync_after_shrinking() {
    let (mut encoder, mut decoder) = (Encoder::new(2048), Decoder::new());
    let fields = pairs("server: peregrine\nvary: accept");
    for round in 0..10 {
        let block = encode(&mut encoder, &fields);
        assert_eq!(decode(&mut decoder, &block).unwrap(), fields);
        if round % 4 == 3 {
            encoder.shrink();
            decoder.shrink();
        }
    }
}

fn field() -> impl Strategy<Value = Pair> {
    let name = prop_oneof![
        prop::sample::select(vec![
            "server",
            "date",
            "content-type",
            "x-a",
            "vary",
            "set-cookie",
            "etag"
        ])
        .prop_map(str::to_owned),
        "[a-z0-9-]{1,20}",
    ];
    let value = prop_oneof![
        prop::sample::select(vec!["", "1", "text/html", "a, b, c"]).prop_map(str::to_owned),
        "[ -~]{0,60}",
    ];
    (name, value).prop_map(|(name, value)| (name.into_bytes(), value.into_bytes()))
}

fn blocks() -> impl Strategy<Value = Vec<Vec<Pair>>> {
    // Few fields in many blocks, so that they are repeated.
    proptest::collection::vec(field(), 1..12).prop_flat_map(|fields| {
        let block = proptest::collection::vec(prop::sample::select(fields), 0..8);
        proptest::collection::vec(block, 1..12)
    })
}

proptest! {
    #[test]
    fn encoded_blocks_are_decoded_by_both_decoders(blocks in blocks(), size in 0..600_u32) {
        let (mut encoder, mut decoder) = (Encoder::new(size), Decoder::new());
        let mut oracle = loona_hpack::Decoder::new();
        for fields in blocks {
            let block = encode(&mut encoder, &fields);
            prop_assert_eq!(&decode(&mut decoder, &block).unwrap(), &fields);
            prop_assert_eq!(&oracle.decode(&block).unwrap(), &fields);
        }
    }

    #[test]
    fn blocks_of_the_oracle_are_decoded(blocks in blocks()) {
        let (mut oracle, mut decoder) = (loona_hpack::Encoder::new(), Decoder::new());
        for fields in blocks {
            let borrowed = fields.iter().map(|(name, value)| (name.as_slice(), value.as_slice()));
            let block = oracle.encode(borrowed);
            prop_assert_eq!(decode(&mut decoder, &block).unwrap(), fields);
        }
    }

    #[test]
    fn decoded_arbitrary_bytes_are_decoded_equally_by_the_oracle(
        blocks in proptest::collection::vec(
            proptest::collection::vec(
                prop_oneof![2 => any::<u8>(), 1 => 0..8_u8, 1 => Just(0x40), 1 => 0xbe..0xc4_u8], 0..40),
            1..6),
    ) {
        let (mut decoder, mut oracle) = (Decoder::new(), loona_hpack::Decoder::new());
        oracle.set_max_allowed_table_size(4096);
        for mut block in blocks {
            // The oracle rejects a size update without a following field; the standard does not.
            block.push(0x82);
            let Ok(decoded) = decode(&mut decoder, &block) else { break };
            prop_assert_eq!(oracle.decode(&block).unwrap(), decoded);
        }
    }
}
