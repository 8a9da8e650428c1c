//! Receiving a message and sending a response immediately does not allocate.

use std::alloc::{GlobalAlloc, Layout, System};
use std::cell::Cell;
use std::io::{Read, Write};
use std::net::{TcpListener, TcpStream};

use peregrine_driver::{Driver, Listener, Options, Socket, Stream};
use peregrine_driver_tokio::Tokio;

thread_local! {
    /// The allocations of this thread; other threads do not count.
    static ALLOCATIONS: Cell<u64> = const { Cell::new(0) };
}

struct CountingAllocator;

#[expect(unsafe_code, reason = "only a global allocator can count allocations")]
// SAFETY: every call is forwarded unchanged to the system allocator, which upholds the contract.
unsafe impl GlobalAlloc for CountingAllocator {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        ALLOCATIONS.with(|count| count.set(count.get() + 1));
        // SAFETY: the caller upholds the contract of `alloc`, which is the same.
        unsafe { System.alloc(layout) }
    }

    unsafe fn dealloc(&self, pointer: *mut u8, layout: Layout) {
        // SAFETY: the pointer came from `alloc` above, hence from the system, with this layout.
        unsafe { System.dealloc(pointer, layout) }
    }
}

#[global_allocator]
static ALLOCATOR: CountingAllocator = CountingAllocator;

#[test]
fn receiving_and_sending_do_not_allocate_if_the_kernel_accepts_everything() {
    const MESSAGES: u64 = 1000;
    let socket = TcpListener::bind("127.0.0.1:0").expect("loopback has a free port");
    let address = socket.local_addr().expect("the socket is bound");
    let client = std::thread::spawn(move || {
        let mut client = TcpStream::connect(address).expect("the server listens");
        let mut response = [0; 200];
        for _ in 0..=MESSAGES {
            client.write_all(b"question").expect("the connection is open");
            client.read_exact(&mut response).expect("the connection is open");
        }
    });
    Tokio::run(&Options::default(), async |driver: Tokio| {
        let listener = driver.listen(Socket::Tcp(socket)).expect("the socket listens");
        let stream = listener.accept().await.expect("a client connects");
        let mut out = Vec::with_capacity(200);
        let buffer = out.as_ptr();
        let (mut before, tasks) = (0, driver.tokio_tasks());
        for message in 0..=MESSAGES {
            let chunk = stream.recv().await.expect("the connection is open");
            assert_eq!(&*chunk, b"question");
            drop(chunk);
            // More writes than tokio's budget for one poll of a task.
            for _ in 0..200 {
                out.push(b'a');
                stream.send(&mut out);
            }
            assert_eq!(driver.tokio_tasks(), tasks, "nothing is left to write");
            if message == 0 {
                before = ALLOCATIONS.get();
            }
        }
        assert_eq!(ALLOCATIONS.get() - before, 0, "allocations for {MESSAGES} messages");
        assert!(out.as_ptr() == buffer && out.capacity() == 200, "the sender keeps its buffer");
    })
    .expect("the runtime starts");
    client.join().expect("the client has not panicked");
}
