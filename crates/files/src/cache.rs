//! A worker's cache of recent files: the content of small files, and open handles of larger ones.

use crate::content_coding::AcceptedCodings;
use crate::metadata::{FileContent, ResolvedFile};
use crate::target::FilePath;
use std::collections::HashMap;
use std::rc::Rc;
use std::time::{Duration, Instant};

/// The estimated memory of an entry in addition to its content and paths.
const ENTRY_BYTES: usize = 512;

/// The maximum number of open files. Each occupies a descriptor and, if the file was deleted, its
/// disk space.
pub(crate) const OPEN_FILES_MAX: usize = 64;

pub(crate) type Key = (FilePath, AcceptedCodings);

/// Caches files for a short time, to avoid disk access.
#[derive(Debug)]
pub(crate) struct FileCache {
    entries: HashMap<Key, CachedFile>,
    bytes: usize,
    bytes_max: usize,
    /// The open files by lookup time, earliest first.
    open_files: Vec<(Instant, Key)>,
    ttl: Duration,
    /// A counter of uses, for least-recently-used eviction.
    uses: u64,
    close_all_count: u64,
}

#[derive(Debug)]
struct CachedFile {
    file: Rc<ResolvedFile>,
    checked_at: Instant,
    last_used: u64,
}

impl FileCache {
    pub(crate) fn new(bytes_max: usize, ttl: Duration) -> Self {
        let (entries, open_files) = (HashMap::new(), Vec::new());
        Self { entries, bytes: 0, bytes_max, open_files, ttl, uses: 0, close_all_count: 0 }
    }

    /// Returns the cached file if it is fresh. The content of a small file is fresh for the whole
    /// `ttl`; an open file is stale as soon as its metadata has changed.
    pub(crate) fn get(&mut self, key: &Key, now: Instant) -> Option<Rc<ResolvedFile>> {
        self.uses += 1;
        self.close_stale(now);
        let entry = self.entries.get_mut(key)?;
        let is_stale = now.saturating_duration_since(entry.checked_at) >= self.ttl;
        if is_stale || entry.file.is_stale() {
            self.remove(key);
            return None;
        }
        entry.last_used = self.uses;
        Some(Rc::clone(&entry.file))
    }

    /// Caches a file, evicting others if necessary.
    pub(crate) fn insert(&mut self, key: Key, file: &Rc<ResolvedFile>, now: Instant) {
        let (bytes, is_open) = (memory_bytes(&key, file), file.is_open());
        if bytes > self.bytes_max || self.ttl.is_zero() {
            return;
        }
        self.remove(&key);
        self.close_stale(now);
        while is_open && self.open_files.len() >= OPEN_FILES_MAX {
            self.evict_lru(|entry| entry.file.is_open());
        }
        while self.bytes + bytes > self.bytes_max {
            self.evict_lru(|_| true);
        }
        self.bytes += bytes;
        if is_open {
            let index = self.open_files.partition_point(|(looked_up_at, _)| *looked_up_at <= now);
            self.open_files.insert(index, (now, key.clone()));
        }
        let entry = CachedFile { file: Rc::clone(file), checked_at: now, last_used: self.uses };
        self.entries.insert(key, entry);
    }

    /// Closes all open files, because the process is out of descriptors. Returns the new value of
    /// [`Self::close_all_count`].
    pub(crate) fn close_all(&mut self) -> u64 {
        let open = std::mem::take(&mut self.open_files);
        open.iter().for_each(|(_, key)| self.remove(key));
        self.close_all_count += u64::from(!open.is_empty());
        self.close_all_count
    }

    /// Returns how many times open files were closed by [`Self::close_all`].
    pub(crate) fn close_all_count(&self) -> u64 {
        self.close_all_count
    }

    /// Closes files whose entries are stale.
    fn close_stale(&mut self, now: Instant) {
        while let Some((looked_up_at, key)) = self.open_files.first() {
            if now.saturating_duration_since(*looked_up_at) < self.ttl {
                return;
            }
            let key = key.clone();
            self.remove(&key);
        }
    }

    /// Removes the least recently used of the matching entries, of which there must be one.
    fn evict_lru(&mut self, matches: impl Fn(&CachedFile) -> bool) {
        let candidates = self.entries.iter().filter(|(_, entry)| matches(entry));
        let oldest =
            candidates.min_by_key(|(_, entry)| entry.last_used).map(|(key, _)| key.clone());
        self.remove(&oldest.expect("counted entries exist"));
    }

    fn remove(&mut self, key: &Key) {
        if let Some(entry) = self.entries.remove(key) {
            self.bytes -= memory_bytes(key, &entry.file);
            if entry.file.is_open() {
                self.open_files.retain(|(_, other)| other != key);
            }
        }
    }
}

fn memory_bytes((target, _): &Key, file: &ResolvedFile) -> usize {
    let content = match &file.content {
        FileContent::Memory(bytes) => bytes.len(),
        FileContent::Open(_) => 0,
    };
    content + target.path.len() + file.path.len() + ENTRY_BYTES
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::metadata::FileMetadata;
    use bytes::Bytes;

    fn key(path: &str) -> Key {
        (FilePath { path: path.to_owned(), is_dir: false }, [None; 3])
    }

    fn cached_file(bytes: usize) -> Rc<ResolvedFile> {
        Rc::new(ResolvedFile {
            path: String::new(),
            media_type: "text/plain",
            metadata: FileMetadata::new(bytes as u64, None, String::from("\"\"")),
            content_coding: None,
            varies: false,
            content: FileContent::Memory(Bytes::from(vec![0; bytes])),
        })
    }

    #[test]
    fn entries_expire_and_are_evicted() {
        let start = Instant::now();
        let later = |millis| start + Duration::from_millis(millis);
        let capacity = 2 * (1000 + ENTRY_BYTES + 1);
        let mut cache = FileCache::new(capacity, Duration::from_secs(1));
        cache.insert(key("a"), &cached_file(1000), start);
        assert!(cache.get(&key("a"), later(999)).is_some());
        assert!(cache.get(&key("a"), later(1000)).is_none(), "the entry is stale");
        assert_eq!(cache.bytes, 0);

        for name in ["a", "b"] {
            cache.get(&key(name), start);
            cache.insert(key(name), &cached_file(1000), start);
        }
        assert!(cache.get(&key("a"), start).is_some());
        cache.insert(key("c"), &cached_file(1000), start);
        assert!(cache.get(&key("a"), start).is_some(), "the entry was used last");
        assert!(cache.get(&key("b"), start).is_none());
        assert!(cache.get(&key("c"), start).is_some());
        cache.insert(key("d"), &cached_file(capacity), start);
        assert!(cache.get(&key("d"), start).is_none(), "the entry is too large");
        assert!(cache.bytes <= capacity);
        cache.insert(key("a"), &cached_file(10), start);
        assert_eq!(
            cache.get(&key("a"), start).expect("the entry was just added").metadata.length,
            10
        );
    }

    #[test]
    fn open_files_are_limited_in_number_and_time() {
        let start = Instant::now();
        let file = std::sync::Arc::new(tempfile::tempfile().expect("a file"));
        let new_open_file = || {
            let content = FileContent::Open(std::sync::Arc::clone(&file));
            let metadata =
                FileMetadata::from_metadata(&file.metadata().expect("the file is open"), None);
            Rc::new(ResolvedFile {
                content,
                metadata,
                ..Rc::into_inner(cached_file(0)).expect("the entry has no other owner")
            })
        };
        let mut cache = FileCache::new(1 << 20, Duration::from_secs(1));
        cache.insert(key("small"), &cached_file(1000), start);
        for name in 0..OPEN_FILES_MAX + 5 {
            cache.get(&key(&name.to_string()), start);
            cache.insert(key(&name.to_string()), &new_open_file(), start);
        }
        let open_counts =
            |cache: &FileCache| (cache.open_files.len(), std::sync::Arc::strong_count(&file) - 1);
        assert_eq!(open_counts(&cache), (OPEN_FILES_MAX, OPEN_FILES_MAX));
        assert!(cache.get(&key("4"), start).is_none() && cache.get(&key("5"), start).is_some());
        assert!(cache.get(&key("small"), start).is_some(), "a file in memory needs no descriptor");
        cache.insert(key("new"), &new_open_file(), start + Duration::from_secs(1));
        assert_eq!(open_counts(&cache), (1, 1));
        cache.insert(key("newer"), &new_open_file(), start + Duration::from_millis(1500));
        assert!(cache.get(&key("none"), start + Duration::from_secs(2)).is_none());
        assert_eq!(open_counts(&cache), (1, 1), "any lookup closes stale files");
        assert_eq!((cache.close_all_count(), cache.close_all(), cache.close_all()), (0, 1, 1));
        assert_eq!(
            (open_counts(&cache), cache.entries.len()),
            ((0, 0), 1),
            "the file in memory stays"
        );
    }
}
