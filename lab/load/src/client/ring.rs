//! The lab's ring: io_uring for the client, and the only unsafe code of the lab.
//!
//! Three rules make it sound. Memory that the kernel may read or write belongs to the ring's own
//! structures, never to a caller. A slot is reused only when the kernel holds no operation on it.
//! When the ring is dropped, every stream is shut down and the last completion of every operation
//! is awaited before memory is freed; if one does not come, the memory is given up for ever.

use std::alloc::{Layout, alloc_zeroed, dealloc, handle_alloc_error};
use std::io;
use std::net::{Shutdown, SocketAddr, TcpStream};
use std::os::fd::AsRawFd;
use std::ptr::NonNull;
use std::sync::atomic::{AtomicU16, Ordering};
use std::time::Duration;

use io_uring::types::{BufRingEntry, Fd, SubmitArgs, Timespec};
use io_uring::{IoUring, cqueue, opcode, squeue};

use super::engine::{self, Engine, Event, Token};

const SUBMISSIONS: u32 = 1024;
const COMPLETIONS: u32 = 8192;
const BUFFERS: u16 = 1024;
const BUFFER_BYTES: usize = 4096;
const GROUP: u16 = 0;
const PAGE_BYTES: usize = 4096;
const _: () = assert!(BUFFERS.is_power_of_two(), "the kernel masks the ring's tail");

/// Completions carry the token and, in the lowest two bits, which operation they end.
const RECEIVE: u64 = 0;
const SEND: u64 = 1;
const CONNECT: u64 = 2;
const OPERATION_BITS: u32 = 2;

/// POLLOUT on Linux: the stream is writable, or broken.
const POLL_WRITABLE: u32 = 4;

pub(crate) struct Ring {
    ring: IoUring,
    buffers: Option<Buffers>,
    slots: Vec<Slot>,
    free: Vec<Token>,
    completions: Vec<(u64, i32, u32)>,
    unarmed: Vec<Token>,
}

/// One stream and its operations.
#[derive(Default)]
struct Slot {
    stream: Option<TcpStream>,
    /// What the kernel reads while `is_sending`; not touched meanwhile.
    outgoing: Vec<u8>,
    sent: usize,
    /// What was sent by the caller while an earlier send was under way.
    waiting: Vec<u8>,
    is_sending: bool,
    is_receiving: bool,
    is_connecting: bool,
    is_detached: bool,
}

impl Ring {
    /// Makes a ring with every feature that the load loop relies on, or says why not.
    pub(crate) fn new() -> io::Result<Ring> {
        let ring = IoUring::builder()
            .setup_single_issuer()
            .setup_defer_taskrun()
            .setup_submit_all()
            .setup_cqsize(COMPLETIONS)
            .build(SUBMISSIONS)?;
        let buffers = Buffers::new();
        // SAFETY: the entries are page-aligned, BUFFERS long, and live until `Ring::drop` has
        // ended every operation (or for ever).
        let registered = unsafe {
            ring.submitter().register_buf_ring_with_flags(buffers.entries(), BUFFERS, GROUP, 0)
        };
        registered?;
        Ok(Ring {
            ring,
            buffers: Some(buffers),
            slots: Vec::new(),
            free: Vec::new(),
            completions: Vec::new(),
            unarmed: Vec::new(),
        })
    }

    fn push(&mut self, entry: &squeue::Entry) -> io::Result<()> {
        loop {
            // SAFETY: what the entry points to is the ring's: a slot's `outgoing`, untouched
            // until the send's completion, or the provided buffers. Both outlive the operation.
            let pushed = unsafe { self.ring.submission().push(entry) };
            if pushed.is_ok() {
                return Ok(());
            }
            self.ring.submit()?;
        }
    }

    fn arm(&mut self, token: Token) -> io::Result<()> {
        let slot = &mut self.slots[token];
        let Some(stream) = &slot.stream else { return Ok(()) };
        slot.is_receiving = true;
        let entry = opcode::RecvMulti::new(Fd(stream.as_raw_fd()), GROUP)
            .build()
            .user_data((token as u64) << OPERATION_BITS | RECEIVE);
        self.push(&entry)
    }

    fn send_rest(&mut self, token: Token) -> io::Result<()> {
        let slot = &mut self.slots[token];
        let Some(stream) = &slot.stream else { return Ok(()) };
        slot.is_sending = true;
        let rest = &slot.outgoing[slot.sent..];
        let count = u32::try_from(rest.len()).expect("requests are far below 4 GiB");
        let entry = opcode::Send::new(Fd(stream.as_raw_fd()), rest.as_ptr(), count)
            .build()
            .user_data((token as u64) << OPERATION_BITS | SEND);
        self.push(&entry)
    }

    fn on_connected(
        &mut self,
        token: Token,
        sink: &mut dyn FnMut(Token, Event<'_>),
    ) -> io::Result<()> {
        let slot = &mut self.slots[token];
        slot.is_connecting = false;
        if slot.is_detached {
            self.release(token);
            return Ok(());
        }
        let stream = slot.stream.as_ref().expect("a slot has a stream until its release");
        // The ring waits for blocking streams; on others it answers "would block".
        let made = engine::connected(stream).and_then(|()| stream.set_nonblocking(false));
        if let Err(error) = made {
            sink(token, Event::Ended(Some(error)));
            return Ok(());
        }
        self.arm(token)?;
        sink(token, Event::Connected);
        Ok(())
    }

    fn on_sent(&mut self, token: Token, result: i32) -> io::Result<()> {
        let slot = &mut self.slots[token];
        slot.is_sending = false;
        // A broken stream ends its receive as well, which reports the end.
        let is_broken = result < 0;
        slot.sent += usize::try_from(result).unwrap_or(0);
        if slot.is_detached || is_broken {
            slot.outgoing.clear();
            slot.waiting.clear();
            self.release(token);
            return Ok(());
        }
        if slot.sent == slot.outgoing.len() {
            slot.outgoing.clear();
            slot.sent = 0;
            std::mem::swap(&mut slot.outgoing, &mut slot.waiting);
        }
        if slot.outgoing.is_empty() { Ok(()) } else { self.send_rest(token) }
    }

    fn on_received(
        &mut self,
        token: Token,
        (result, flags): (i32, u32),
        sink: &mut dyn FnMut(Token, Event<'_>),
    ) {
        let is_detached = self.slots[token].is_detached;
        let is_armed = cqueue::more(flags);
        self.slots[token].is_receiving = is_armed;
        let buffer = cqueue::buffer_select(flags);
        if let Some(buffer) = buffer {
            let buffers = self.buffers.as_mut().expect("buffers live as long as the ring");
            if result > 0 && !is_detached {
                sink(token, Event::Data(buffers.filled(buffer, result)));
            }
            buffers.recycle(buffer);
        }
        if is_detached {
            self.release(token);
            return;
        }
        match result {
            _ if is_armed => {}
            0 => sink(token, Event::Ended(None)),
            // Out of buffers, or a multishot that ended for the kernel's own reasons: the data
            // waits in the socket.
            1.. => self.unarmed.push(token),
            _ => match io::Error::from_raw_os_error(-result) {
                error if error.raw_os_error() == Some(NO_BUFFERS) => self.unarmed.push(token),
                error => sink(token, Event::Ended(Some(error))),
            },
        }
    }

    fn release(&mut self, token: Token) {
        let slot = &mut self.slots[token];
        let is_held = slot.is_sending || slot.is_receiving || slot.is_connecting;
        if slot.is_detached && !is_held {
            *slot = Slot::default();
            self.free.push(token);
        }
    }
}

/// How long a turn awaits the last completions when a ring is closed, and how many turns in a row
/// may bring none.
const CLOSE_WAIT: Duration = Duration::from_millis(10);
const CLOSE_IDLE_TURNS_MAX: usize = 100;

/// ENOBUFS on Linux.
const NO_BUFFERS: i32 = rustix::io::Errno::NOBUFS.raw_os_error();

impl Engine for Ring {
    fn attach(&mut self, stream: TcpStream) -> io::Result<Token> {
        let token = self.free.pop().unwrap_or_else(|| {
            self.slots.push(Slot::default());
            self.slots.len() - 1
        });
        self.slots[token].stream = Some(stream);
        self.arm(token)?;
        Ok(token)
    }

    fn connect(&mut self, address: SocketAddr) -> io::Result<Token> {
        let stream = engine::begin_to_connect(address)?;
        let entry = opcode::PollAdd::new(Fd(stream.as_raw_fd()), POLL_WRITABLE);
        let token = self.free.pop().unwrap_or_else(|| {
            self.slots.push(Slot::default());
            self.slots.len() - 1
        });
        let slot = &mut self.slots[token];
        slot.stream = Some(stream);
        slot.is_connecting = true;
        self.push(&entry.build().user_data((token as u64) << OPERATION_BITS | CONNECT))?;
        Ok(token)
    }

    fn send(&mut self, token: Token, bytes: &[u8]) -> io::Result<()> {
        let slot = &mut self.slots[token];
        if slot.is_sending {
            slot.waiting.extend_from_slice(bytes);
            return Ok(());
        }
        slot.outgoing.clear();
        slot.outgoing.extend_from_slice(bytes);
        slot.sent = 0;
        self.send_rest(token)
    }

    fn detach(&mut self, token: Token) {
        let slot = &mut self.slots[token];
        slot.is_detached = true;
        // Shutting down ends the armed receive; closing alone would not, because the operation
        // holds the file.
        if let Some(stream) = &slot.stream {
            let _ = stream.shutdown(Shutdown::Both);
        }
        self.release(token);
    }

    fn set_reset_on_close(&mut self, token: Token) {
        if let Some(stream) = &self.slots[token].stream {
            engine::set_reset_on_close(stream);
        }
    }

    fn turn(&mut self, wait: Duration, sink: &mut dyn FnMut(Token, Event<'_>)) -> io::Result<()> {
        let timeout = Timespec::from(wait);
        let arguments = SubmitArgs::new().timespec(&timeout);
        match self.ring.submitter().submit_with_args(1, &arguments) {
            Ok(_) => {}
            Err(error) if is_no_failure(&error) => {}
            Err(error) => return Err(error),
        }
        let mut completions = std::mem::take(&mut self.completions);
        let entries = self.ring.completion();
        completions.extend(entries.map(|entry| (entry.user_data(), entry.result(), entry.flags())));
        for (data, result, flags) in completions.drain(..) {
            let token = usize::try_from(data >> OPERATION_BITS).expect("a token was submitted");
            match data & ((1 << OPERATION_BITS) - 1) {
                SEND => self.on_sent(token, result)?,
                CONNECT => self.on_connected(token, sink)?,
                _ => self.on_received(token, (result, flags), sink),
            }
        }
        self.completions = completions;
        self.buffers.as_mut().expect("buffers live as long as the ring").publish();
        for token in std::mem::take(&mut self.unarmed) {
            if self.slots[token].is_detached {
                continue;
            }
            self.arm(token)?;
        }
        Ok(())
    }
}

fn is_no_failure(error: &io::Error) -> bool {
    use rustix::io::Errno;
    let known = [Errno::TIME, Errno::INTR, Errno::BUSY, Errno::AGAIN];
    error.raw_os_error().is_some_and(|code| known.iter().any(|one| one.raw_os_error() == code))
}

impl Ring {
    /// Closes every stream and awaits the last completion of every operation; whether all came.
    fn close(&mut self) -> bool {
        for token in 0..self.slots.len() {
            if self.slots[token].stream.is_some() && !self.slots[token].is_detached {
                self.detach(token);
            }
        }
        // One turn brings about twenty completions, so turns count only if they bring none.
        let mut idle_turns = 0;
        let mut left = self.operations();
        while left > 0 && idle_turns < CLOSE_IDLE_TURNS_MAX {
            if self.turn(CLOSE_WAIT, &mut |_, _| {}).is_err() {
                break;
            }
            let before = std::mem::replace(&mut left, self.operations());
            idle_turns = if left < before { 0 } else { idle_turns + 1 };
        }
        left == 0
    }

    /// How many operations the kernel holds.
    fn operations(&self) -> usize {
        let held = |slot: &Slot| {
            [slot.is_sending, slot.is_receiving, slot.is_connecting]
                .map(usize::from)
                .iter()
                .sum::<usize>()
        };
        self.slots.iter().map(held).sum()
    }
}

impl Drop for Ring {
    fn drop(&mut self) {
        let is_quiet = self.close();
        if let Some(buffers) = self.buffers.take() {
            if is_quiet {
                buffers.free();
            } else {
                Box::leak(Box::new(std::mem::take(&mut self.slots)));
            }
        }
    }
}

/// The buffers that the kernel fills, and the ring of entries that offers them.
///
/// Freed by [`Buffers::free`] only: dropping it leaks, which is always sound.
struct Buffers {
    memory: NonNull<u8>,
    /// How far the offers go, and how far the kernel was told.
    tail: u16,
}

impl Buffers {
    /// The entries first, because they need a page's alignment, then the buffers.
    const ENTRIES_BYTES: usize = BUFFERS as usize * size_of::<BufRingEntry>();
    const LAYOUT: Layout = match Layout::from_size_align(
        Self::ENTRIES_BYTES + BUFFERS as usize * BUFFER_BYTES,
        PAGE_BYTES,
    ) {
        Ok(layout) => layout,
        Err(_) => panic!("the sizes are constants"),
    };

    fn new() -> Buffers {
        // SAFETY: the layout has a size, and all-zero bytes are valid entries and buffers.
        let memory = unsafe { alloc_zeroed(Self::LAYOUT) };
        let Some(memory) = NonNull::new(memory) else { handle_alloc_error(Self::LAYOUT) };
        let mut buffers = Buffers { memory, tail: 0 };
        for buffer in 0..BUFFERS {
            buffers.recycle(buffer);
        }
        buffers.publish();
        buffers
    }

    fn entries(&self) -> u64 {
        self.memory.as_ptr().expose_provenance() as u64
    }

    fn address(&self, buffer: u16) -> NonNull<u8> {
        assert!(buffer < BUFFERS, "the kernel names only buffers that it was offered");
        let offset = Self::ENTRIES_BYTES + usize::from(buffer) * BUFFER_BYTES;
        // SAFETY: the offset of a buffer below BUFFERS lies within the allocation.
        unsafe { self.memory.add(offset) }
    }

    /// What the kernel put into a buffer that it has handed over and that is not recycled yet.
    fn filled(&self, buffer: u16, count: i32) -> &[u8] {
        let count = usize::try_from(count).expect("a filled buffer has a length");
        assert!(count <= BUFFER_BYTES, "the kernel fills at most what it was offered");
        let start = self.address(buffer).as_ptr();
        // SAFETY: the bytes are initialised (zeroed or written by the kernel), within the
        // allocation, and not written by anyone until `recycle`, which needs `&mut self`.
        unsafe { std::slice::from_raw_parts(start, count) }
    }

    /// Offers a buffer again; the kernel sees it after the next [`Buffers::publish`].
    fn recycle(&mut self, buffer: u16) {
        let address = self.address(buffer).as_ptr().expose_provenance() as u64;
        let index = usize::from(self.tail & (BUFFERS - 1));
        // SAFETY: the index is below BUFFERS, so the entry lies within the allocation.
        let entry = unsafe { self.memory.cast::<BufRingEntry>().add(index) };
        // SAFETY: the kernel reads entries between its head and the published tail only. At most
        // BUFFERS buffers exist, so this entry is not among them, and no other reference to it
        // exists. The setters leave the tail field, which overlays the first entry, alone.
        let entry = unsafe { &mut *entry.as_ptr() };
        entry.set_addr(address);
        entry.set_len(BUFFER_BYTES as u32);
        entry.set_bid(buffer);
        self.tail = self.tail.wrapping_add(1);
    }

    fn publish(&mut self) {
        let base = self.memory.cast::<BufRingEntry>().as_ptr();
        // SAFETY: this is the first entry of the ring, initialised in `new`.
        let tail = unsafe { BufRingEntry::tail(base) };
        // SAFETY: the field is aligned, lives as long as the allocation, and is shared with the
        // kernel only, which loads it atomically.
        let tail = unsafe { AtomicU16::from_ptr(tail.cast_mut()) };
        tail.store(self.tail, Ordering::Release);
    }

    /// Gives the memory back; the caller knows that the kernel holds no operation any more.
    fn free(self) {
        // SAFETY: allocated in `new` with this layout, and freed once, because `self` is consumed.
        unsafe { dealloc(self.memory.as_ptr(), Self::LAYOUT) };
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::net::TcpListener;

    #[test]
    fn closing_awaits_armed_receives_and_sends_that_are_stuck() {
        // Where the kernel refuses the ring there is nothing to close.
        let Ok(mut ring) = Ring::new() else { return };
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let mut peers = Vec::new();
        for _ in 0..3 {
            let stream = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
            peers.push(listener.accept().unwrap());
            let token = ring.attach(stream).unwrap();
            // More than the socket buffers hold, and the peer reads nothing.
            ring.send(token, &vec![0; 32 << 20]).unwrap();
        }
        ring.turn(Duration::ZERO, &mut |_, _| panic!("nothing arrives")).unwrap();
        assert!(ring.slots.iter().all(|slot| slot.is_sending && slot.is_receiving));
        assert!(ring.close());
        assert_eq!(ring.free.len(), 3);
    }

    #[test]
    fn closing_awaits_more_operations_than_a_hundred_turns_complete() {
        const STREAMS: usize = 2500;
        let Ok(mut ring) = Ring::new() else { return };
        crate::system::raise_descriptor_limit().unwrap();
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let mut peers = Vec::new();
        for _ in 0..STREAMS {
            let stream = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
            peers.push(listener.accept().unwrap());
            ring.attach(stream).unwrap();
        }
        ring.turn(Duration::ZERO, &mut |_, _| {}).unwrap();
        drop(peers);
        assert!(ring.close());
        assert_eq!(ring.free.len(), STREAMS);
    }

    #[test]
    fn a_slot_is_free_again_only_after_its_last_completion() {
        let Ok(mut ring) = Ring::new() else { return };
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let connect = || TcpStream::connect(listener.local_addr().unwrap()).unwrap();
        let first = ring.attach(connect()).unwrap();
        ring.turn(Duration::ZERO, &mut |_, _| {}).unwrap();
        ring.detach(first);
        let second = ring.attach(connect()).unwrap();
        assert_ne!(first, second);
        for _ in 0..100 {
            ring.turn(Duration::from_millis(10), &mut |_, event| panic!("{event:?}")).unwrap();
            if !ring.free.is_empty() {
                break;
            }
        }
        assert_eq!(ring.attach(connect()).unwrap(), first);
    }

    #[test]
    fn every_buffer_is_offered_once() {
        let buffers = Buffers::new();
        assert_eq!(buffers.tail, BUFFERS);
        let distance = buffers.address(1).as_ptr() as usize - buffers.address(0).as_ptr() as usize;
        assert_eq!(distance, BUFFER_BYTES);
        assert_eq!(buffers.entries() as usize % PAGE_BYTES, 0);
        assert!(buffers.filled(BUFFERS - 1, 0).is_empty());
        buffers.free();
    }
}
