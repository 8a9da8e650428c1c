//! Binds a worker's thread to one CPU.

use peregrine_driver::order_by_numa_node;
use std::io;
use std::sync::OnceLock;

/// Binds the calling thread to one of the CPUs that the process may use: number `place` in the
/// order of nodes, modulo their number.
///
/// # Errors
/// The system does not report the CPUs, or this one was taken away.
pub(crate) fn pin_thread(place: usize) -> io::Result<()> {
    // Threads inherit the CPU set of the thread that starts them, so the set is read once, before
    // any thread was bound here.
    static USABLE: OnceLock<Vec<usize>> = OnceLock::new();
    let usable = match USABLE.get() {
        Some(usable) => usable,
        None => {
            let found = order_by_numa_node(allowed_cpus()?);
            USABLE.get_or_init(|| found)
        }
    };
    let mut only = empty_cpu_set();
    // SAFETY: the number was found in such a set, so it is smaller than its size.
    unsafe { libc::CPU_SET(usable[place % usable.len()], &mut only) };
    // SAFETY: the pointer and size describe the set, which outlives the call.
    let result = unsafe { libc::sched_setaffinity(0, size_of::<libc::cpu_set_t>(), &only) };
    if result == 0 { Ok(()) } else { Err(io::Error::last_os_error()) }
}

/// The CPUs that the calling thread may use; at least one.
fn allowed_cpus() -> io::Result<Vec<usize>> {
    let mut set = empty_cpu_set();
    // SAFETY: the pointer and size describe the set, which outlives the call.
    let result = unsafe { libc::sched_getaffinity(0, size_of::<libc::cpu_set_t>(), &mut set) };
    if result != 0 {
        return Err(io::Error::last_os_error());
    }
    let numbers = 0..8 * size_of::<libc::cpu_set_t>();
    // SAFETY: the number is smaller than the size of the set.
    Ok(numbers.filter(|&cpu| unsafe { libc::CPU_ISSET(cpu, &set) }).collect())
}

fn empty_cpu_set() -> libc::cpu_set_t {
    // SAFETY: a set of CPUs is an array of bits; all zero is the empty set.
    unsafe { std::mem::zeroed() }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::thread;

    /// The CPUs of a thread that was bound to `place`.
    fn bound_to(place: usize) -> Vec<usize> {
        let thread = thread::spawn(move || {
            pin_thread(place).unwrap();
            allowed_cpus().unwrap()
        });
        thread.join().unwrap()
    }

    #[test]
    fn a_thread_is_bound_to_the_nth_usable_cpu_counted_around() {
        let usable = order_by_numa_node(allowed_cpus().unwrap());
        for place in 0..2 * usable.len() + 1 {
            assert_eq!(bound_to(place), [usable[place % usable.len()]]);
        }
    }

    #[test]
    fn a_bound_thread_does_not_narrow_the_choice_of_those_that_it_starts() {
        let usable = order_by_numa_node(allowed_cpus().unwrap());
        let second = thread::spawn(|| {
            pin_thread(0).unwrap();
            bound_to(1)
        });
        assert_eq!(second.join().unwrap(), [usable[1 % usable.len()]]);
    }
}
