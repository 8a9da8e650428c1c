//! The rival Tako with the allocator of all contenders.

#[global_allocator]
static ALLOCATOR: mimalloc::MiMalloc = mimalloc::MiMalloc;

fn main() -> Result<(), tako::types::BoxError> {
    lab_contender_tako::run()
}
