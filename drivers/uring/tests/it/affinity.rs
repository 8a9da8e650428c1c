//! Binding a worker to a CPU. The driver reads the CPUs that a process may use only once, so the
//! test needs a separate process.

use crate::harness::{join, worker};
use crate::own_process;
use peregrine_driver::Options;

/// The CPUs of the calling thread.
fn allowed_cpus() -> libc::cpu_set_t {
    // SAFETY: a set of CPUs is an array of bits; all zero is the empty set.
    let mut set = unsafe { std::mem::zeroed() };
    // SAFETY: the pointer and size describe the set, which outlives the call.
    let result = unsafe { libc::sched_getaffinity(0, size_of::<libc::cpu_set_t>(), &mut set) };
    assert_eq!(result, 0);
    set
}

fn contains(set: &libc::cpu_set_t, cpu: usize) -> bool {
    // SAFETY: the number is smaller than the size of the set.
    unsafe { libc::CPU_ISSET(cpu, set) }
}

#[test]
fn a_worker_is_bound_to_a_cpu_that_the_process_may_use() {
    if own_process::delegate("affinity::a_worker_is_bound_to_a_cpu_that_the_process_may_use") {
        return;
    }
    let all = allowed_cpus();
    let last = (0..8 * size_of::<libc::cpu_set_t>()).rfind(|&cpu| contains(&all, cpu)).unwrap();
    // SAFETY: a set of CPUs is an array of bits; all zero is the empty set.
    let mut one_cpu: libc::cpu_set_t = unsafe { std::mem::zeroed() };
    // SAFETY: the number was found in such a set.
    unsafe { libc::CPU_SET(last, &mut one_cpu) };
    // SAFETY: the pointer and size describe the set, which outlives the call.
    let result = unsafe { libc::sched_setaffinity(0, size_of::<libc::cpu_set_t>(), &one_cpu) };
    assert_eq!(result, 0);
    for cpu in [0, 1, 1_000_000] {
        let options = Options { cpu: Some(cpu), ..Options::default() };
        let cpus = join(worker(options, |_| async { allowed_cpus() }));
        // SAFETY: both are sets that were filled above.
        assert!(unsafe { libc::CPU_EQUAL(&cpus, &one_cpu) }, "CPU {cpu} of one");
    }
}
