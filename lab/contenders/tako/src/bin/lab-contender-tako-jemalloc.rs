//! The rival Tako with the allocator of its own feature `jemalloc`.

#[global_allocator]
static ALLOCATOR: tako::Jemalloc = tako::Jemalloc;

fn main() -> Result<(), tako::types::BoxError> {
    lab_contender_tako::run()
}
