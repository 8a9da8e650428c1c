//! Buffers that a worker uses again instead of allocating: a thread's own small stock.

use std::cell::RefCell;

/// Buffers kept per thread; more are freed.
const BUFFERS_MAX: usize = 64;

/// A buffer that grew beyond this is freed instead of kept, so that one large reply does not stay
/// in memory for ever.
const BUFFER_BYTES_MAX: usize = 64 * 1024;

/// What a new buffer starts with: a small reply fits without growing.
const BUFFER_BYTES_MIN: usize = 1024;

thread_local! {
    static BUFFERS: RefCell<Vec<Vec<u8>>> = const { RefCell::new(Vec::new()) };
}

/// An empty buffer with some capacity, from this thread's stock if there is one.
#[must_use]
pub fn take() -> Vec<u8> {
    BUFFERS
        .try_with(|buffers| buffers.borrow_mut().pop())
        .ok()
        .flatten()
        .unwrap_or_else(|| Vec::with_capacity(BUFFER_BYTES_MIN))
}

/// Gives a buffer to this thread's stock, whatever thread it came from. Its content is lost.
pub fn give(mut buffer: Vec<u8>) {
    if buffer.capacity() < BUFFER_BYTES_MIN || buffer.capacity() > BUFFER_BYTES_MAX {
        return;
    }
    buffer.clear();
    // While the thread ends there is no stock any more: the buffer is then freed here.
    let _ = BUFFERS.try_with(|buffers| {
        let mut buffers = buffers.borrow_mut();
        if buffers.len() < BUFFERS_MAX {
            buffers.push(buffer);
        }
    });
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_buffer_comes_back_empty_with_its_capacity() {
        let mut buffer = take();
        buffer.extend_from_slice(&[7; 3000]);
        let (address, capacity) = (buffer.as_ptr(), buffer.capacity());
        give(buffer);
        let again = take();
        assert_eq!((again.as_ptr(), again.capacity(), again.len()), (address, capacity, 0));
    }

    #[test]
    fn a_buffer_that_grew_too_large_is_not_kept() {
        while BUFFERS.with(|buffers| buffers.borrow_mut().pop()).is_some() {}
        give(Vec::with_capacity(BUFFER_BYTES_MAX + 1));
        assert_eq!(BUFFERS.with(|buffers| buffers.borrow().len()), 0);
    }

    #[test]
    fn the_stock_is_bounded() {
        for _ in 0..3 * BUFFERS_MAX {
            give(Vec::with_capacity(BUFFER_BYTES_MIN));
        }
        assert_eq!(BUFFERS.with(|buffers| buffers.borrow().len()), BUFFERS_MAX);
    }
}
