//! A lookup does not allocate, whatever its result.

use std::alloc::{GlobalAlloc, Layout, System};
use std::cell::Cell;
use std::hint::black_box;

use peregrine_router::{MethodSet, Parameters, RouterBuilder, TrailingSlash};

thread_local! {
    /// The number of allocations of this thread, so that other tests do not count.
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

fn count_allocations(f: impl FnOnce()) -> u64 {
    let before = ALLOCATIONS.with(Cell::get);
    f();
    ALLOCATIONS.with(Cell::get) - before
}

#[test]
fn lookups_do_not_allocate() {
    let patterns =
        ["/", "/users", "/caf\u{e9}/{x}", "/users/{id}", "/v{n}.json/{a}/{b}", "/f/{*rest}"];
    let long = format!("/f/{}", "x/".repeat(400));
    let medium = format!("/users/{}", "y".repeat(90));
    let paths = [
        "/",
        "/users",
        "/users/",
        "/users/7",
        "/users/7/8",
        "/caf%C3%A9/%20",
        "/v1.json/2/3",
        "/f/a/b",
        "/none",
        "",
        &medium,
        &long,
    ];
    for policy in [TrailingSlash::Strict, TrailingSlash::Redirect, TrailingSlash::Ignore] {
        let mut builder = RouterBuilder::new();
        builder.trailing_slash(policy);
        for (id, pattern) in patterns.iter().enumerate() {
            builder.insert(pattern, MethodSet::single(0), id as u32);
        }
        let router = builder.build().unwrap();
        for path in paths {
            let path = path.as_bytes();
            for method in [0, 1] {
                let count = count_allocations(|| {
                    let mut parameters = Parameters::default();
                    black_box(router.find(path, method, &mut parameters));
                    let values = router.values(&parameters, path);
                    for (name, value) in values.iter() {
                        assert_eq!(values.by_name(name), Some(value));
                    }
                    black_box(router.allowed_methods(path));
                });
                assert_eq!(count, 0, "{:?}", String::from_utf8_lossy(path));
            }
        }
    }
    assert_eq!(count_allocations(|| drop(black_box(Box::new(1)))), 1, "the counter works");
}
