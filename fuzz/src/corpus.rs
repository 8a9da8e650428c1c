//! The inputs that mutation starts from, taken from the case files.

use crate::script::parse;
use std::path::Path;

/// The bytes of every request case.
///
/// # Panics
///
/// If the case files are not where the sources were.
#[must_use]
pub fn requests() -> Vec<Vec<u8>> {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../crates/proto/cases");
    let mut paths: Vec<_> = std::fs::read_dir(folder)
        .expect("the case files are beside the sources")
        .map(|entry| entry.expect("a case file can be listed").path())
        .collect();
    paths.sort();
    let files =
        paths.iter().map(|path| std::fs::read_to_string(path).expect("a case file is text"));
    let cases = files.flat_map(|file| parse(&file)).filter(|case| case.text("send").is_some());
    let inputs = cases.map(|case| case.bytes("send"));
    inputs.filter(|bytes| !bytes.is_empty() && bytes.len() <= SEED_BYTES_MAX).collect()
}

/// The same with a first byte for each way to run a connection.
#[must_use]
pub fn connections() -> Vec<Vec<u8>> {
    let ways = requests().into_iter().zip((0..=255_u8).cycle());
    ways.map(|(bytes, way)| [&[way], bytes.as_slice()].concat()).collect()
}

/// The same for responses: any bytes make one.
#[must_use]
pub fn responses() -> Vec<Vec<u8>> {
    connections()
}

/// Longer cases are about limits and only slow the others down.
const SEED_BYTES_MAX: usize = 1500;
