//! Binds a worker's thread to one CPU.

use peregrine_driver::order_by_numa_node;
use std::io;
use std::sync::OnceLock;

/// Binds the calling thread to one of the CPUs that the process may use: the one at `index`, modulo
/// their number, in the order of NUMA nodes.
///
/// # Errors
/// The system does not report the CPUs, or the process may no longer use this one.
pub(crate) fn pin_thread(index: usize) -> io::Result<()> {
    // Threads inherit the CPU set of the thread that starts them, so the set is read only once,
    // before this function has bound any thread.
    static USABLE: OnceLock<Vec<usize>> = OnceLock::new();
    let cpus = match USABLE.get() {
        Some(cpus) => cpus,
        None => {
            let ordered = order_by_numa_node(allowed_cpus()?);
            USABLE.get_or_init(|| ordered)
        }
    };
    let mut set = empty_cpu_set();
    // SAFETY: the CPU's number was found in a set of the same size, so it is in range.
    unsafe { libc::CPU_SET(cpus[index % cpus.len()], &mut set) };
    // SAFETY: the pointer and size describe the set, which outlives the call.
    let result = unsafe { libc::sched_setaffinity(0, size_of::<libc::cpu_set_t>(), &set) };
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

    /// The CPUs of a thread that was bound to `index`.
    fn cpus_after_pinning(index: usize) -> Vec<usize> {
        let thread = thread::spawn(move || {
            pin_thread(index).unwrap();
            allowed_cpus().unwrap()
        });
        thread.join().unwrap()
    }

    #[test]
    fn a_thread_is_bound_to_the_nth_allowed_cpu_modulo_their_number() {
        let cpus = order_by_numa_node(allowed_cpus().unwrap());
        for index in 0..2 * cpus.len() + 1 {
            assert_eq!(cpus_after_pinning(index), [cpus[index % cpus.len()]]);
        }
    }

    #[test]
    fn threads_started_by_a_bound_thread_can_use_all_cpus() {
        let cpus = order_by_numa_node(allowed_cpus().unwrap());
        let second = thread::spawn(|| {
            pin_thread(0).unwrap();
            cpus_after_pinning(1)
        });
        assert_eq!(second.join().unwrap(), [cpus[1 % cpus.len()]]);
    }
}
