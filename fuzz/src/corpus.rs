//! The initial inputs for mutation, taken from the case files.

use crate::notation;
use crate::script::{Case, parse};
use crate::wire;
use std::path::Path;

/// The bytes of every request case.
///
/// # Panics
///
/// If the case files are not beside the sources.
#[must_use]
pub fn requests() -> Vec<Vec<u8>> {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../crates/proto/cases");
    let mut paths: Vec<_> = std::fs::read_dir(folder)
        .expect("the case files are beside the sources")
        .map(|entry| entry.expect("a case file can be listed").path())
        .collect();
    paths.retain(|path| path.is_file());
    paths.sort();
    let files =
        paths.iter().map(|path| std::fs::read_to_string(path).expect("a case file is text"));
    let cases = files.flat_map(|file| parse(&file)).filter(|case| case.text("send").is_some());
    let inputs = cases.map(|case| case.bytes("send"));
    inputs.filter(|bytes| !bytes.is_empty() && bytes.len() <= SEED_BYTES_MAX).collect()
}

/// The same, after a byte that selects the options of the connection.
#[must_use]
pub fn connections() -> Vec<Vec<u8>> {
    let seeds = requests().into_iter().zip((0..=255_u8).cycle());
    seeds.map(|(bytes, options)| [&[options], bytes.as_slice()].concat()).collect()
}

/// The same for responses, where any bytes are valid input.
#[must_use]
pub fn responses() -> Vec<Vec<u8>> {
    connections()
}

fn load_cases(folder: &str) -> Vec<Case> {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../crates/proto/cases").join(folder);
    let mut paths: Vec<_> = std::fs::read_dir(folder)
        .expect("the case files are beside the sources")
        .map(|entry| entry.expect("a case file can be listed").path())
        .collect();
    paths.sort();
    let files =
        paths.iter().map(|path| std::fs::read_to_string(path).expect("a case file is text"));
    files.flat_map(|file| parse(&file)).collect()
}

/// The frames of every HTTP/2 case, after a byte that selects the options of the connection: as
/// bytes, and in the packed form that the target expands to complete frames.
///
/// # Panics
///
/// If the case files are not beside the sources.
#[must_use]
pub fn frames() -> Vec<Vec<u8>> {
    let hello = wire::bytes(["hello"].iter()).len();
    let mut seeds = Vec::new();
    for (case, options) in load_cases("h2").iter().zip((0..=255_u8).cycle()) {
        let bytes = wire::bytes(case.texts("send"));
        if bytes.len() > SEED_BYTES_MAX {
            continue;
        }
        let Some(frames) = bytes.get(hello..) else { continue };
        seeds.push([&[options & !1], frames].concat());
        seeds.push([&[options | 1], crate::h2::pack(frames).as_slice()].concat());
    }
    seeds
}

/// The header blocks of every HTTP/2 case.
///
/// # Panics
///
/// If the case files are not beside the sources.
#[must_use]
pub fn blocks() -> Vec<Vec<u8>> {
    let lines = load_cases("h2");
    let blocks = lines.iter().flat_map(|case| case.texts("send")).filter(|line| {
        let is_plain = !line.contains("+pad") && !line.contains("+priority");
        line.starts_with("headers") && is_plain
    });
    let bytes = blocks.map(|line| wire::bytes([line].iter()));
    bytes.filter(|bytes| bytes.len() <= SEED_BYTES_MAX).map(|bytes| bytes[9..].to_vec()).collect()
}

/// The frames of every WebSocket case, after a byte that selects the options of the connection: as
/// bytes, and in the packed form that the target expands to complete frames.
///
/// # Panics
///
/// If the case files are not beside the sources.
#[must_use]
pub fn messages() -> Vec<Vec<u8>> {
    let mut seeds = Vec::new();
    for case in load_cases("ws") {
        let has_option = |word| case.text("way").is_some_and(|options| options.contains(word));
        let bits =
            [(has_option("client"), 2), (has_option("compresses"), 4), (has_option("closes"), 8)];
        let options =
            bits.iter().filter(|(is_set, _)| *is_set).fold(0, |options, (_, bit)| options | bit);
        let bytes = notation::bytes(case.texts("send"), !has_option("client"));
        if bytes.len() > SEED_BYTES_MAX {
            continue;
        }
        for options in [options, options | 16] {
            seeds.push([&[options], bytes.as_slice()].concat());
        }
        let is_well_formed = !case.texts("send").any(|line| line.starts_with("raw"));
        if is_well_formed {
            let mut packed = vec![options | 1];
            for frame in notation::frames(&bytes) {
                packed.extend([frame.first, u8::try_from(frame.payload.len()).unwrap_or(0)]);
                packed.extend(frame.payload);
            }
            seeds.push(packed);
        }
    }
    seeds
}

/// Compression offers, each with a compressed message.
///
/// # Panics
///
/// If the case files are not beside the sources.
#[must_use]
pub fn compressed() -> Vec<Vec<u8>> {
    let offers = [
        "permessage-deflate",
        "permessage-deflate; client_max_window_bits",
        "permessage-deflate; server_max_window_bits=10; client_no_context_takeover",
        "permessage-deflate; server_no_context_takeover; client_max_window_bits=\"12\"",
        "foo; a=\"b, \\\"c\", permessage-deflate; server_max_window_bits=8, permessage-deflate",
    ];
    let cases = load_cases("ws");
    let bytes = cases.iter().map(|case| notation::bytes(case.texts("send"), true));
    let frames = bytes.filter(|bytes| bytes.first() == Some(&0xC1)).filter_map(|bytes| {
        let mut frames = notation::frames(&bytes);
        (frames[0].payload.len() <= SEED_BYTES_MAX).then(|| frames.remove(0).payload)
    });
    let zeros = [0x62, 0x60, 0x18, 0x05, 0xA3, 0x60, 0x14, 0x0C, 0x77, 0x00, 0x00];
    let payloads = frames.chain([zeros.to_vec(), b"hello hello hello".to_vec()]);
    let pairs = payloads.zip(offers.iter().cycle());
    pairs.map(|(payload, offer)| [offer.as_bytes(), &[0], &payload].concat()).collect()
}

/// The maximum size of a seed. Longer cases exercise limits, and would only slow mutation down.
const SEED_BYTES_MAX: usize = 1500;

/// Route tables and paths, as bytes that the router's target decodes.
#[must_use]
pub fn routes() -> Vec<Vec<u8>> {
    let texts = [
        "/",
        "/users",
        "/users/{id}",
        "/users/{id}/posts/{post}",
        "/files/{*rest}",
        "/{name}.json",
        "/v{version}/users",
        "/a%2Fb",
        "/caf%C3%A9",
        "/users/new",
        "//",
        "/a/b/c/d/e/f/g/h",
    ];
    let mut seeds: Vec<Vec<u8>> = texts.iter().map(|text| text.as_bytes().to_vec()).collect();
    seeds.extend(
        (0..=255u8)
            .step_by(16)
            .map(|first| (0..64u8).map(|at| first.wrapping_add(at.wrapping_mul(37))).collect()),
    );
    seeds
}

/// TLS ClientHello flights, and data that is not TLS.
#[must_use]
pub fn records() -> Vec<Vec<u8>> {
    let mut seeds: Vec<Vec<u8>> = [20u8, 21, 22, 23, 24, 128]
        .iter()
        .flat_map(|kind| {
            [1u8, 3, 4].map(|minor| vec![*kind, 3, minor, 0, 5, 1, 0, 0, 1, 3, 22, 3, 3, 0, 0])
        })
        .collect();
    seeds.extend([b"GET / HTTP/1.1\r\n".to_vec(), b"PRI * HTTP/2.0\r\n".to_vec(), vec![0; 32]]);
    seeds
}

/// Certificates, revocation lists and OCSP responses.
pub fn certificates() -> Vec<Vec<u8>> {
    let names: [(u8, &[u8]); 8] = [
        (0x82, b"client.test"),
        (0x86, b"spiffe://example.test/web"),
        (0x81, b"a@example.test"),
        (0x87, &[192, 0, 2, 1]),
        (0x87, &[0; 16]),
        (0x82, b"a\0.test"),
        (0xa0, b"\x06\x01\x2a\xa0\x02\x05\x00"),
        (0x82, b""),
    ];
    let attributes: [(&[u8], u8, &[u8]); 6] = [
        (&[0x55, 4, 3], 0x0c, "größe".as_bytes()),
        (&[0x55, 4, 10], 0x13, b" Example, Inc."),
        (&[0x55, 4, 6], 0x16, b"DE"),
        (&[0x55, 4, 11], 0x1e, &[0, b'a', 0xd8, 0]),
        (&[0x2a, 0x86, 0x48], 0x14, &[0xe9]),
        (&[0x55, 4, 3], 0x02, &[1]),
    ];
    let mut seeds = Vec::new();
    for (number, (object, tag, value)) in attributes.iter().enumerate() {
        let attribute = der(0x30, &[&der(0x06, &[object]), &der(*tag, &[value])]);
        let subject =
            der(0x30, &[&der(0x31, &[&attribute]), &der(0x31, &[&attribute, &attribute])]);
        for (tag, name) in names.iter().skip(number % 2).step_by(2) {
            let names = der(0x30, &[&der(*tag, &[name]), &der(0x82, &[b"b.test"])]);
            let extension = der(0x30, &[&der(0x06, &[&[0x55, 0x1d, 0x11]]), &der(0x04, &[&names])]);
            let extensions = der(0xa3, &[&der(0x30, &[&extension])]);
            let dates = der(0x30, &[&date("20200101000000Z"), &date("21000101000000Z")]);
            let (serial, empty) = (der(0x02, &[&[7]]), der(0x30, &[]));
            let body = [
                &der(0xa0, &[&[2, 1, 2]])[..],
                &serial,
                &empty,
                &empty,
                &dates,
                &subject,
                &empty,
                &extensions,
            ];
            seeds.push(der(0x30, &[&der(0x30, &body)]));
        }
    }
    let list =
        [&der(0x02, &[&[1]])[..], &der(0x30, &[]), &der(0x30, &[]), &date("20200101000000Z")];
    seeds.push(der(0x30, &[&der(0x30, &list)]));
    let about = [&der(0x30, &[])[..], &der(0x04, &[]), &der(0x04, &[]), &der(0x02, &[&[7]])];
    let until = der(0xa0, &[&date("21000101000000Z")]);
    let answer = der(0x30, &[&der(0x30, &about), &[0x80, 0], &date("20200101000000Z"), &until]);
    let signed = der(0x30, &[&der(0xa2, &[]), &date("20200101000000Z"), &der(0x30, &[&answer])]);
    let bytes = der(0x30, &[&der(0x06, &[&[0x2a]]), &der(0x04, &[&der(0x30, &[&signed])])]);
    seeds.push(der(0x30, &[&der(0x0a, &[&[0]]), &der(0xa0, &[&bytes])]));
    seeds
}

/// Writes a DER value.
fn der(tag: u8, pieces: &[&[u8]]) -> Vec<u8> {
    let content = pieces.concat();
    let length = u8::try_from(content.len()).map_or_else(
        |_| {
            [&[0x82][..], &u16::try_from(content.len()).expect("the value fits").to_be_bytes()]
                .concat()
        },
        |length| if length < 0x80 { vec![length] } else { vec![0x81, length] },
    );
    [&[tag][..], &length, &content].concat()
}

fn date(text: &str) -> Vec<u8> {
    der(0x18, &[text.as_bytes()])
}
