//! Bodies: fixtures from files, bytes made from a length, and what a server must say of them.

use std::fmt::Write as _;
use std::fs;
use std::path::{Path, PathBuf};

use sha2::{Digest, Sha256};

use crate::error::Wrong;
use crate::scenario::Fixture;

/// The most bytes of a body, sent or expected: as many as contenders accept and the judge reads.
pub(crate) const BODY_BYTES_MAX: usize = 16 << 20;

/// The fixtures of one scenario: they are read from its folder, and remembered by their hashes.
pub(crate) struct Fixtures<'a> {
    folder: &'a Path,
    pub(crate) used: Vec<Fixture>,
}

impl<'a> Fixtures<'a> {
    pub(crate) fn beside(file: &'a Path) -> Fixtures<'a> {
        Fixtures { folder: file.parent().unwrap_or(Path::new("")), used: Vec::new() }
    }

    /// The bytes of a fixture that `key` names.
    pub(crate) fn read(&mut self, key: &str, name: &PathBuf) -> Result<Vec<u8>, Wrong> {
        let path = self.folder.join(name);
        let fix = "name a readable file, relative to the scenario's own folder";
        let bytes = fs::read(&path)
            .map_err(|error| Wrong::new(key, format!("{}: {error}", path.display()), fix))?;
        if bytes.len() > BODY_BYTES_MAX {
            let cause = format!("{} has {} bytes", path.display(), bytes.len());
            return Err(Wrong::new(key, cause, format!("at most {BODY_BYTES_MAX} are allowed")));
        }
        let fixture = Fixture { path: name.clone(), sha256: sha256(&bytes) };
        if !self.used.contains(&fixture) {
            self.used.push(fixture);
        }
        Ok(bytes)
    }
}

/// Bytes that look random and are the same in each run, so that no server can compress them or
/// know them by a shortcut. The generator is SplitMix64, started at the length.
pub(crate) fn bytes_of_size(size: usize) -> Vec<u8> {
    let mut state = size as u64;
    let mut bytes = Vec::with_capacity(size + 8);
    while bytes.len() < size {
        state = state.wrapping_add(0x9E37_79B9_7F4A_7C15);
        let mut mixed = state;
        mixed = (mixed ^ (mixed >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
        mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
        bytes.extend_from_slice(&(mixed ^ (mixed >> 31)).to_le_bytes());
    }
    bytes.truncate(size);
    bytes
}

/// The most bytes of a form's file: contenders are told where they come.
pub(crate) const FORM_FILE_BYTES_MAX: usize = 32 << 20;

/// The media type of a form.
pub(crate) const FORM_TYPE: &str = "multipart/form-data; boundary=lab-5f3c9a71e2d84b06";

/// A form as browsers send it (RFC 7578): a field of text, and this file.
pub(crate) fn form(file: &[u8]) -> Vec<u8> {
    let boundary = FORM_TYPE.rsplit('=').next().expect("the type names it");
    let head = format!(
        "--{boundary}\r\nContent-Disposition: form-data; name=\"title\"\r\n\r\na film\r\n\
         --{boundary}\r\nContent-Disposition: form-data; name=\"file\"; filename=\"film.mp4\"\r\n\
         Content-Type: video/mp4\r\n\r\n"
    );
    [head.as_bytes(), file, format!("\r\n--{boundary}--\r\n").as_bytes()].concat()
}

/// How many bytes a numbered line has: nine digits and a line feed.
const LINE_BYTES: usize = 10;

/// The most numbered lines.
pub(crate) const LINES_MAX: usize = BODY_BYTES_MAX / LINE_BYTES;

/// So many lines with their numbers from 0, in nine digits each, so that every place of a long text is
/// told from every other one.
pub(crate) fn numbered_lines(count: usize) -> String {
    (0..count).fold(String::with_capacity(count * LINE_BYTES), |mut text, number| {
        writeln!(text, "{number:09}").expect("a string takes any text");
        text
    })
}

/// The template that stands for exactly these bytes: a brace that would begin a placeholder is
/// doubled.
pub(crate) fn literal(bytes: &[u8]) -> Vec<u8> {
    let mut out = Vec::with_capacity(bytes.len() + bytes.len() / 64);
    for (at, &byte) in bytes.iter().enumerate() {
        if byte == b'{' && bytes.get(at + 1).is_some_and(u8::is_ascii_lowercase) {
            out.push(b'{');
        }
        out.push(byte);
    }
    out
}

/// What a server must answer to an upload of these bytes, as JSON.
pub(crate) fn upload_answer(bytes: &[u8]) -> String {
    format!(r#"{{"bytes":{},"sha256":"{}"}}"#, bytes.len(), sha256(bytes))
}

/// SHA-256 in lower-case hexadecimal digits.
pub(crate) fn sha256(bytes: &[u8]) -> String {
    Sha256::digest(bytes).iter().fold(String::with_capacity(64), |mut text, byte| {
        write!(text, "{byte:02x}").expect("a string takes any text");
        text
    })
}

#[cfg(test)]
mod tests {
    use peregrine_lab_load::question::{Template, Values};

    use super::*;

    #[test]
    fn a_literal_is_read_back_as_it_was() {
        let random = bytes_of_size(1 << 20);
        let cases: [&[u8]; 6] = [b"{a}", b"{{a", b"{{{{z{", b"{ } {\"a\":{}}", b"", &random];
        for bytes in cases {
            let template = Template::parse(&literal(bytes), &mut Values::new(1)).unwrap();
            assert!(template.constant() == Some(bytes), "{:?}", &bytes[..bytes.len().min(20)]);
        }
    }

    #[test]
    fn bytes_of_a_size_have_it_and_all_values() {
        for size in [0, 1, 7, 8, 9, 4096] {
            assert_eq!(bytes_of_size(size).len(), size);
        }
        let seen: std::collections::BTreeSet<u8> = bytes_of_size(4096).into_iter().collect();
        assert_eq!(seen.len(), 256);
        assert_eq!(bytes_of_size(100), bytes_of_size(100));
        assert_ne!(bytes_of_size(100)[..50], bytes_of_size(50)[..]);
    }

    #[test]
    fn lines_are_numbered_from_zero_and_equally_long() {
        assert_eq!(numbered_lines(3), "000000000\n000000001\n000000002\n");
        let text = numbered_lines(100_000);
        assert_eq!(text.len(), 1_000_000);
        assert!(text.ends_with("\n000099999\n"));
    }

    #[test]
    fn the_answer_to_an_upload_has_the_hash_of_the_standard() {
        // FIPS 180-2 §B.1: the hash of "abc".
        assert_eq!(
            upload_answer(b"abc"),
            r#"{"bytes":3,"sha256":"ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad"}"#
        );
    }
}
