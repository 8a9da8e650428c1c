//! Small files that were asked for lately, for one worker.

use crate::encoding::Accepted;
use crate::facts::{Content, Found};
use crate::target::Target;
use std::collections::HashMap;
use std::rc::Rc;
use std::time::{Duration, Instant};

/// What an entry costs beside its content.
const ENTRY_BYTES: usize = 512;

pub(crate) type Key = (Target, Accepted);

/// Keeps files for a short time, without a look at the disk.
#[derive(Debug)]
pub(crate) struct Cache {
    entries: HashMap<Key, Entry>,
    bytes: usize,
    bytes_max: usize,
    fresh_for: Duration,
    /// Counts uses, so that what was not used longest goes first.
    uses: u64,
}

#[derive(Debug)]
struct Entry {
    found: Rc<Found>,
    looked: Instant,
    used: u64,
}

impl Cache {
    pub(crate) fn new(bytes_max: usize, fresh_for: Duration) -> Self {
        Self { entries: HashMap::new(), bytes: 0, bytes_max, fresh_for, uses: 0 }
    }

    /// The file, if the disk was looked at for it lately.
    pub(crate) fn find(&mut self, key: &Key, now: Instant) -> Option<Rc<Found>> {
        self.uses += 1;
        let entry = self.entries.get_mut(key)?;
        if now.saturating_duration_since(entry.looked) >= self.fresh_for {
            self.remove(key);
            return None;
        }
        entry.used = self.uses;
        Some(Rc::clone(&entry.found))
    }

    /// Keeps what was found, if it is in memory and there is room, for which others may go.
    pub(crate) fn keep(&mut self, key: Key, found: &Rc<Found>, now: Instant) {
        let bytes = weight(&key, found);
        let Content::Memory(_) = found.content else { return };
        if bytes > self.bytes_max || self.fresh_for.is_zero() {
            return;
        }
        self.remove(&key);
        while self.bytes + bytes > self.bytes_max {
            let oldest = self.entries.iter().min_by_key(|(_, entry)| entry.used);
            let Some(oldest) = oldest.map(|(key, _)| key.clone()) else { return };
            self.remove(&oldest);
        }
        self.bytes += bytes;
        let entry = Entry { found: Rc::clone(found), looked: now, used: self.uses };
        self.entries.insert(key, entry);
    }

    fn remove(&mut self, key: &Key) {
        if let Some(entry) = self.entries.remove(key) {
            self.bytes -= weight(key, &entry.found);
        }
    }
}

fn weight((target, _): &Key, found: &Found) -> usize {
    let content = match &found.content {
        Content::Memory(bytes) => bytes.len(),
        Content::Open(_) => 0,
    };
    content + target.path.len() + found.path.len() + ENTRY_BYTES
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::facts::Facts;
    use bytes::Bytes;

    fn key(path: &str) -> Key {
        (Target { path: path.to_owned(), is_folder: false }, [None; 3])
    }

    fn found(bytes: usize) -> Rc<Found> {
        Rc::new(Found {
            path: String::new(),
            media_type: "text/plain",
            facts: Facts { length: bytes as u64, modified: None, tag: String::new() },
            encoding: None,
            varies: false,
            content: Content::Memory(Bytes::from(vec![0; bytes])),
        })
    }

    #[test]
    fn entries_grow_old_and_give_way_to_others() {
        let start = Instant::now();
        let later = |millis| start + Duration::from_millis(millis);
        let room = 2 * (1000 + ENTRY_BYTES + 1);
        let mut cache = Cache::new(room, Duration::from_secs(1));
        cache.keep(key("a"), &found(1000), start);
        assert!(cache.find(&key("a"), later(999)).is_some());
        assert!(cache.find(&key("a"), later(1000)).is_none(), "it must be looked at again");
        assert_eq!(cache.bytes, 0);

        for name in ["a", "b"] {
            cache.find(&key(name), start);
            cache.keep(key(name), &found(1000), start);
        }
        assert!(cache.find(&key("a"), start).is_some());
        cache.keep(key("c"), &found(1000), start);
        assert!(cache.find(&key("a"), start).is_some(), "it was used last");
        assert!(cache.find(&key("b"), start).is_none());
        assert!(cache.find(&key("c"), start).is_some());
        cache.keep(key("d"), &found(room), start);
        assert!(cache.find(&key("d"), start).is_none(), "there is never room for it");
        assert!(cache.bytes <= room);
        cache.keep(key("a"), &found(10), start);
        assert_eq!(cache.find(&key("a"), start).expect("it is new").facts.length, 10);
    }
}
