//! A worker's cache of recent files: the content of small files, and open handles of larger ones.

use crate::encoding::Accepted;
use crate::facts::{Content, Found};
use crate::target::Target;
use std::collections::HashMap;
use std::rc::Rc;
use std::time::{Duration, Instant};

/// The overhead of an entry.
const ENTRY_BYTES: usize = 512;

/// The maximum number of open files. Each needs a descriptor, and the disk space if it was deleted.
pub(crate) const OPEN_FILES_MAX: usize = 64;

pub(crate) type Key = (Target, Accepted);

/// Caches files for a short time, to avoid looking at the disk.
#[derive(Debug)]
pub(crate) struct Cache {
    entries: HashMap<Key, Entry>,
    bytes: usize,
    bytes_max: usize,
    /// The open files by lookup time, earliest first.
    open: Vec<(Instant, Key)>,
    fresh_for: Duration,
    /// A counter of uses, for least-recently-used eviction.
    uses: u64,
    closings: u64,
}

#[derive(Debug)]
struct Entry {
    found: Rc<Found>,
    looked: Instant,
    used: u64,
}

impl Cache {
    pub(crate) fn new(bytes_max: usize, fresh_for: Duration) -> Self {
        let (entries, open) = (HashMap::new(), Vec::new());
        Self { entries, bytes: 0, bytes_max, open, fresh_for, uses: 0, closings: 0 }
    }

    /// The cached file, if it is fresh. Small files keep their cached content; for open files, the
    /// metadata is compared with the cached one.
    pub(crate) fn find(&mut self, key: &Key, now: Instant) -> Option<Rc<Found>> {
        self.uses += 1;
        self.close_stale(now);
        let entry = self.entries.get_mut(key)?;
        let is_stale = now.saturating_duration_since(entry.looked) >= self.fresh_for;
        if is_stale || entry.found.is_changed() {
            self.remove(key);
            return None;
        }
        entry.used = self.uses;
        Some(Rc::clone(&entry.found))
    }

    /// Caches a file, evicting others if necessary.
    pub(crate) fn keep(&mut self, key: Key, found: &Rc<Found>, now: Instant) {
        let (bytes, is_open) = (weight(&key, found), found.is_open());
        if bytes > self.bytes_max || self.fresh_for.is_zero() {
            return;
        }
        self.remove(&key);
        self.close_stale(now);
        while is_open && self.open.len() >= OPEN_FILES_MAX {
            self.remove_oldest(|entry| entry.found.is_open());
        }
        while self.bytes + bytes > self.bytes_max {
            self.remove_oldest(|_| true);
        }
        self.bytes += bytes;
        if is_open {
            let place = self.open.partition_point(|(looked, _)| *looked <= now);
            self.open.insert(place, (now, key.clone()));
        }
        let entry = Entry { found: Rc::clone(found), looked: now, used: self.uses };
        self.entries.insert(key, entry);
    }

    /// Closes all files when the process is out of descriptors. Returns how often this has closed
    /// any.
    pub(crate) fn close_all(&mut self) -> u64 {
        let open = std::mem::take(&mut self.open);
        open.iter().for_each(|(_, key)| self.remove(key));
        self.closings += u64::from(!open.is_empty());
        self.closings
    }

    /// How often all files were closed.
    pub(crate) fn closings(&self) -> u64 {
        self.closings
    }

    /// Closes files whose entries are stale.
    fn close_stale(&mut self, now: Instant) {
        while let Some((looked, key)) = self.open.first() {
            if now.saturating_duration_since(*looked) < self.fresh_for {
                return;
            }
            let key = key.clone();
            self.remove(&key);
        }
    }

    /// Removes the least recently used of the matching entries, of which there must be one.
    fn remove_oldest(&mut self, is_meant: impl Fn(&Entry) -> bool) {
        let meant = self.entries.iter().filter(|(_, entry)| is_meant(entry));
        let oldest = meant.min_by_key(|(_, entry)| entry.used).map(|(key, _)| key.clone());
        self.remove(&oldest.expect("counted entries exist"));
    }

    fn remove(&mut self, key: &Key) {
        if let Some(entry) = self.entries.remove(key) {
            self.bytes -= weight(key, &entry.found);
            if entry.found.is_open() {
                self.open.retain(|(_, it)| it != key);
            }
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
            facts: Facts::new(bytes as u64, None, String::from("\"\"")),
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
        assert!(cache.find(&key("a"), later(1000)).is_none(), "the entry is stale");
        assert_eq!(cache.bytes, 0);

        for name in ["a", "b"] {
            cache.find(&key(name), start);
            cache.keep(key(name), &found(1000), start);
        }
        assert!(cache.find(&key("a"), start).is_some());
        cache.keep(key("c"), &found(1000), start);
        assert!(cache.find(&key("a"), start).is_some(), "the entry was used last");
        assert!(cache.find(&key("b"), start).is_none());
        assert!(cache.find(&key("c"), start).is_some());
        cache.keep(key("d"), &found(room), start);
        assert!(cache.find(&key("d"), start).is_none(), "the entry is too large");
        assert!(cache.bytes <= room);
        cache.keep(key("a"), &found(10), start);
        assert_eq!(
            cache.find(&key("a"), start).expect("the entry was just added").facts.length,
            10
        );
    }

    #[test]
    fn few_files_are_kept_open_and_none_for_long() {
        let start = Instant::now();
        let file = std::sync::Arc::new(tempfile::tempfile().expect("a file"));
        let new = || {
            let content = Content::Open(std::sync::Arc::clone(&file));
            let facts = Facts::of(&file.metadata().expect("the file is open"), None);
            Rc::new(Found {
                content,
                facts,
                ..Rc::into_inner(found(0)).expect("the entry has no other owner")
            })
        };
        let mut cache = Cache::new(1 << 20, Duration::from_secs(1));
        cache.keep(key("small"), &found(1000), start);
        for name in 0..OPEN_FILES_MAX + 5 {
            cache.find(&key(&name.to_string()), start);
            cache.keep(key(&name.to_string()), &new(), start);
        }
        let open = |cache: &Cache| (cache.open.len(), std::sync::Arc::strong_count(&file) - 1);
        assert_eq!(open(&cache), (OPEN_FILES_MAX, OPEN_FILES_MAX));
        assert!(cache.find(&key("4"), start).is_none() && cache.find(&key("5"), start).is_some());
        assert!(cache.find(&key("small"), start).is_some(), "a file in memory needs no descriptor");
        cache.keep(key("new"), &new(), start + Duration::from_secs(1));
        assert_eq!(open(&cache), (1, 1));
        cache.keep(key("newer"), &new(), start + Duration::from_millis(1500));
        assert!(cache.find(&key("none"), start + Duration::from_secs(2)).is_none());
        assert_eq!(open(&cache), (1, 1), "any lookup closes stale files");
        assert_eq!((cache.closings(), cache.close_all(), cache.close_all()), (0, 1, 1));
        assert_eq!((open(&cache), cache.entries.len()), ((0, 0), 1), "the file in memory stays");
    }
}
