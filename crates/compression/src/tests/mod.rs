//! Tests of both middlewares, through the test client.

mod pieces;
mod requests;
mod responses;

use crate::ContentCoding;
use std::io::{Read, Write};

/// Encodes `bytes` directly with the coding's library.
fn pack(coding: ContentCoding, bytes: &[u8]) -> Vec<u8> {
    match coding {
        ContentCoding::Zstd => zstd::stream::encode_all(bytes, 3).expect("zstd"),
        ContentCoding::Br => {
            let mut out = Vec::new();
            let mut writer = brotli::CompressorWriter::new(&mut out, 4096, 5, 20);
            writer.write_all(bytes).expect("brotli");
            drop(writer);
            out
        }
        ContentCoding::Gzip => {
            let mut writer =
                flate2::write::GzEncoder::new(Vec::new(), flate2::Compression::default());
            writer.write_all(bytes).expect("gzip");
            writer.finish().expect("gzip")
        }
        ContentCoding::Deflate => {
            let mut writer =
                flate2::write::ZlibEncoder::new(Vec::new(), flate2::Compression::default());
            writer.write_all(bytes).expect("zlib");
            writer.finish().expect("zlib")
        }
    }
}

/// Decodes all of `bytes`.
fn unpack(coding: &str, bytes: &[u8]) -> Vec<u8> {
    let mut out = Vec::new();
    match coding {
        "zstd" => out = zstd::stream::decode_all(bytes).expect("zstd"),
        "br" => {
            brotli::Decompressor::new(bytes, 4096).read_to_end(&mut out).expect("brotli");
        }
        "gzip" => {
            flate2::read::GzDecoder::new(bytes).read_to_end(&mut out).expect("gzip");
        }
        "deflate" => {
            flate2::read::ZlibDecoder::new(bytes).read_to_end(&mut out).expect("zlib");
        }

        other => panic!("unknown coding: {other}"),
    }
    out
}

/// Decodes as much as possible of incomplete content.
fn unpack_so_far(coding: &str, bytes: &[u8]) -> Vec<u8> {
    let mut out = Vec::new();
    let _ = match coding {
        "zstd" => zstd::stream::read::Decoder::new(bytes).expect("zstd").read_to_end(&mut out),
        "br" => brotli::Decompressor::new(bytes, 4096).read_to_end(&mut out),
        "gzip" => flate2::read::GzDecoder::new(bytes).read_to_end(&mut out),
        "deflate" => flate2::read::ZlibDecoder::new(bytes).read_to_end(&mut out),
        other => panic!("unknown coding: {other}"),
    };
    out
}

/// Text with a realistic compression ratio.
fn text(bytes: usize) -> String {
    let (mut text, mut state) = (String::with_capacity(bytes + 16), 1_u64);
    while text.len() < bytes {
        state =
            state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        text.push_str(["falcon ", "kestrel ", "hobby ", "merlin "][(state >> 62) as usize]);
    }
    text.truncate(bytes);
    text
}

/// Incompressible bytes.
fn noise(bytes: usize) -> Vec<u8> {
    let mut state = 88_172_645_463_325_252_u64;
    let mut next = || {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        state.to_le_bytes()[3]
    };
    (0..bytes).map(|_| next()).collect()
}
