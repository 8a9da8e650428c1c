//! Receive buffers, shared by all connections of a worker.

use std::cell::{Cell, RefCell};
use std::mem::take;
use std::ops::Deref;
use std::rc::Rc;
use std::sync::Arc;

use peregrine_driver::{DriverMetrics, Options};

use crate::worker::increment;

/// The minimum and maximum number of buffers in a pool.
const BUFFER_COUNT_RANGE: (u32, u32) = (16, 32_768);
/// The minimum and maximum size of a buffer in bytes.
const BUFFER_BYTES_RANGE: (usize, usize) = (512, 65_536);

/// Buffers of equal size, allocated when first needed and not freed before the worker ends:
/// `free.len() <= allocated <= buffers_max`.
pub(crate) struct BufferPool {
    free: RefCell<Vec<Vec<u8>>>,
    allocated: Cell<usize>,
    buffers_max: usize,
    pub(crate) buffer_bytes: usize,
    exhausted: Cell<u64>,
    /// Where the memory use is published for other threads.
    metrics: Option<Arc<DriverMetrics>>,
}

impl BufferPool {
    pub(crate) fn new(options: &Options) -> Self {
        let buffers = options
            .receive_buffers
            .clamp(BUFFER_COUNT_RANGE.0, BUFFER_COUNT_RANGE.1)
            .next_power_of_two();
        Self {
            free: RefCell::default(),
            allocated: Cell::new(0),
            buffers_max: usize::try_from(buffers).expect("32,768 fits into a usize"),
            buffer_bytes: options
                .receive_buffer_bytes
                .clamp(BUFFER_BYTES_RANGE.0, BUFFER_BYTES_RANGE.1),
            exhausted: Cell::new(0),
            metrics: options.metrics.clone(),
        }
    }

    /// Leases a buffer of full length, if one is free or can be allocated. Prefers the buffer that
    /// was returned last, because it is probably still in the CPU's cache.
    pub(crate) fn get(&self) -> Option<Vec<u8>> {
        if let Some(buffer) = self.free.borrow_mut().pop() {
            return Some(buffer);
        }
        let allocated = self.allocated.get();
        if allocated == self.buffers_max {
            return None;
        }
        self.allocated.set(allocated + 1);
        if let Some(metrics) = &self.metrics {
            metrics.buffer_bytes.add(self.buffer_bytes as i64);
        }
        Some(vec![0; self.buffer_bytes])
    }

    /// Takes back a leased buffer.
    pub(crate) fn put(&self, buffer: Vec<u8>) {
        debug_assert_eq!(buffer.len(), self.buffer_bytes, "the buffer was leased from this pool");
        self.free.borrow_mut().push(buffer);
    }

    /// Counts a receive that found no free buffer and had to allocate memory.
    pub(crate) fn count_exhausted(&self) {
        increment(&self.exhausted);
        if let Some(metrics) = &self.metrics {
            metrics.buffers_exhausted.add(1);
        }
    }

    /// How often a receive found no free buffer and had to allocate memory.
    pub(crate) fn exhausted(&self) -> u64 {
        self.exhausted.get()
    }
}

/// Received bytes, either in separate memory or in a buffer of the worker's pool. Dropping the
/// chunk returns such a buffer to the pool.
pub struct Chunk {
    /// A buffer of the pool always has its full length. In the chunk that marks the end, the vector
    /// is empty and unallocated.
    buffer: Vec<u8>,
    filled: usize,
    pool: Option<Rc<BufferPool>>,
}

impl Chunk {
    /// A chunk of the first `filled` bytes of `buffer`, which returns to `pool` on drop.
    pub(crate) fn new(buffer: Vec<u8>, filled: usize, pool: Rc<BufferPool>) -> Self {
        debug_assert!(filled <= buffer.len(), "a read fills at most the buffer");
        Self { buffer, filled, pool: Some(pool) }
    }

    /// A chunk in separate memory.
    pub(crate) fn owned(buffer: Vec<u8>) -> Self {
        Self { filled: buffer.len(), buffer, pool: None }
    }

    /// Returns the memory of a chunk in separate memory, unless more than half of it is unused:
    /// code that stores received bytes counts their length, not the capacity, so the capacity must
    /// not be much larger.
    pub(crate) fn try_into_vec(mut self) -> Result<Vec<u8>, Self> {
        if self.pool.is_none() && self.filled > 0 && self.filled >= self.buffer.capacity() / 2 {
            return Ok(take(&mut self.buffer));
        }
        Err(self)
    }

    /// The chunk that marks the end of the peer's data.
    pub(crate) fn eof() -> Self {
        Self { buffer: Vec::new(), filled: 0, pool: None }
    }
}

impl Deref for Chunk {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        &self.buffer[..self.filled]
    }
}

impl std::fmt::Debug for Chunk {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_tuple("Chunk").field(&&**self).finish()
    }
}

impl Drop for Chunk {
    fn drop(&mut self) {
        if let Some(pool) = &self.pool {
            pool.put(take(&mut self.buffer));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn smallest_pool() -> Rc<BufferPool> {
        let options = Options { receive_buffers: 1, receive_buffer_bytes: 1, ..Options::default() };
        Rc::new(BufferPool::new(&options))
    }

    #[test]
    fn the_pool_is_bounded_and_reuses_returned_buffers() {
        let pool = smallest_pool();
        let mut leased: Vec<_> = (0..16).map(|_| pool.get().expect("a buffer")).collect();
        assert!(leased.iter().all(|buffer| buffer.len() == 512));
        assert!(pool.get().is_none());
        let returned = leased.pop().expect("a buffer");
        let address = returned.as_ptr();
        drop(Chunk::new(returned, 3, Rc::clone(&pool)));
        let reused = pool.get().expect("the buffer again");
        assert_eq!(reused.as_ptr(), address);
    }
}
