//! Flushing and decoding piece by piece: no output is held back.

use super::{noise, text};
use crate::coding::ContentCoding;
use crate::compression::CompressionLevel;
use crate::decoder::Decoder;
use crate::encoder::Encoder;

const CODINGS: [ContentCoding; 4] =
    [ContentCoding::Gzip, ContentCoding::Deflate, ContentCoding::Br, ContentCoding::Zstd];

/// Passes `pieces` through an encoder and a decoder, with a flush after each.
fn assert_round_trip(coding: ContentCoding, level: CompressionLevel, pieces: &[&[u8]]) {
    let mut encoder = Encoder::new(coding, level, None).expect("an encoder");
    let mut decoder = Decoder::new(coding).expect("a decoder");
    let mut out = Vec::new();
    for (index, piece) in pieces.iter().enumerate() {
        encoder.write(piece, &mut out).expect("the encoder works");
        encoder.flush(&mut out).expect("the encoder works");
        let decoded = decoder.write(&out, usize::MAX).expect("the input is valid");
        let lengths = (decoded.len(), piece.len());
        assert!(decoded == *piece, "{coding:?}, {level:?}, piece {index}: {lengths:?}");
        out.clear();
        // Leave as little space as the next piece gets in practice.
        out.shrink_to(index % 3 * 1_000);
    }
    encoder.finish(&mut out).expect("the encoder works");
    assert_eq!(decoder.write(&out, usize::MAX), Ok(Vec::new()));
    assert_eq!(decoder.finish(usize::MAX), Ok(Vec::new()));
}

#[test]
fn a_flush_emits_everything_written() {
    let (noise, text) = (noise(70_000), text(70_000).into_bytes());
    // Base64: no matches, but fewer bits than bytes.
    let base64: Vec<u8> = noise.iter().map(|byte| b'0' + byte % 64).collect();
    // Lines, events, and sizes around the block and buffer sizes of the encoders.
    let edges = [4_096, 16_384, 31_744, 65_536];
    let nearby = edges.iter().flat_map(|edge| [edge - 1, edge + 1, edge + 38]);
    let sizes: Vec<usize> = [0, 1, 2, 13, 200, 1_023].into_iter().chain(nearby).collect();
    for coding in CODINGS {
        for level in [CompressionLevel::Fastest, CompressionLevel::Default, CompressionLevel::Best]
        {
            for content in [&noise, &text, &base64] {
                let pieces: Vec<&[u8]> = sizes.iter().map(|size| &content[..*size]).collect();
                assert_round_trip(coding, level, &pieces);
            }
        }
    }
}

#[test]
fn a_flush_emits_everything_at_sizes_around_a_block_boundary() {
    let noise = noise(36_000);
    for coding in [ContentCoding::Gzip, ContentCoding::Deflate] {
        for level in [CompressionLevel::Fastest, CompressionLevel::Default, CompressionLevel::Best]
        {
            for size in (31_700..36_000).step_by(89).chain(31_740..31_770) {
                assert_round_trip(coding, level, &[&noise[..size], b"more"]);
            }
        }
    }
}

/// Wherever the input is cut, the decoder produces all output that it can.
#[test]
fn a_decoder_emits_all_available_output() {
    use flate2::{Compress, Compression, Decompress, FlushCompress, FlushDecompress};

    let mut content = Vec::new();
    for number in 0..40 {
        content.extend_from_slice(&noise(number));
        content.resize(content.len() + 9_000, b'a');
    }
    let mut packed = Vec::with_capacity(content.len());
    let mut compress = Compress::new(Compression::best(), true);
    compress.compress_vec(&content, &mut packed, FlushCompress::Finish).expect("the encoder works");
    let mut decoder = Decoder::new(ContentCoding::Deflate).expect("a decoder");
    let (mut expected, mut decoded_len) = (Vec::with_capacity(content.len() + 1), 0);
    let mut inflate = Decompress::new(true);
    for (index, byte) in packed.iter().enumerate() {
        decoded_len += decoder.write(&[*byte], usize::MAX).expect("the input is valid").len();
        let mut rest = &[*byte][..];
        loop {
            let before = (inflate.total_in(), inflate.total_out());
            inflate.decompress_vec(rest, &mut expected, FlushDecompress::None).expect("valid");
            let after = (inflate.total_in(), inflate.total_out());
            rest = if after.0 > before.0 { &[] } else { rest };
            if before == after {
                break;
            }
        }
        assert_eq!(decoded_len, expected.len(), "byte {index} of {}", packed.len());
    }
    assert!(expected == content);
}
