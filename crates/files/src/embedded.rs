//! Files embedded in the program.

use crate::encoding::{Accepted, Encoding, is_compressible};
use crate::facts::{Content, Facts, Found, media_type};
use crate::folder::Lookup;
use crate::target::Target;
use bytes::Bytes;
use rust_embed::{EmbeddedFile, RustEmbed};
use std::borrow::Cow;
use std::fmt::Write;
use std::time::{Duration, SystemTime};

/// An embedded file tree.
#[derive(Clone, Debug)]
pub(crate) struct Embedded {
    get: fn(&str) -> Option<EmbeddedFile>,
    has_below: fn(&str) -> bool,
}

impl Embedded {
    pub(crate) fn of<T: RustEmbed>() -> Self {
        let has_below = |path: &str| {
            T::iter().any(|name| {
                let below = name.strip_prefix(path);
                below.is_some_and(|below| below.starts_with('/'))
            })
        };
        Self { get: T::get, has_below }
    }

    pub(crate) fn look(&self, target: &Target, index: Option<&str>, accepted: Accepted) -> Lookup {
        if !target.is_folder {
            return match self.file(&target.path, accepted) {
                Some(found) => Lookup::File(found),
                None if target.path.is_empty() || (self.has_below)(&target.path) => Lookup::Folder,
                None => Lookup::Nothing,
            };
        }
        let Some(index) = index else { return Lookup::Nothing };
        let path = match &*target.path {
            "" => index.to_owned(),
            path => format!("{path}/{index}"),
        };
        self.file(&path, accepted).map_or(Lookup::Nothing, Lookup::File)
    }

    fn file(&self, path: &str, accepted: Accepted) -> Option<Found> {
        let plain = (self.get)(path)?;
        let media_type = media_type(path);
        let essence = media_type.split(';').next().unwrap_or_default();
        let varies = is_compressible(essence);
        let compressed = accepted.into_iter().flatten().filter(|_| varies).find_map(|encoding| {
            Some(((self.get)(&format!("{path}{}", encoding.ending()))?, Some(encoding)))
        });
        let (file, encoding) = compressed.unwrap_or((plain, None));
        let facts = facts(&file, encoding);
        let content = match file.data {
            Cow::Borrowed(bytes) => Bytes::from_static(bytes),
            Cow::Owned(bytes) => bytes.into(),
        };
        let (path, content) = (path.to_owned(), Content::Memory(content));
        Some(Found { path, media_type, facts, encoding, varies, content })
    }
}

fn facts(file: &EmbeddedFile, encoding: Option<Encoding>) -> Facts {
    let since = file.metadata.last_modified().map(Duration::from_secs);
    let mut tag = String::from("\"");
    for byte in &file.metadata.sha256_hash()[..16] {
        // Writing to a string never fails.
        let _ = write!(tag, "{byte:02x}");
    }
    if let Some(encoding) = encoding {
        let _ = write!(tag, "-{}", encoding.name());
    }
    tag.push('"');
    let modified = since.map(|since| SystemTime::UNIX_EPOCH + since);
    Facts::new(file.data.len() as u64, modified, tag)
}
