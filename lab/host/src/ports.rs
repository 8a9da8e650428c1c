//! Ports for servers to listen on.

use std::io;
use std::net::TcpListener;

/// Loopback ports that were free a moment ago, all different. Another program may take one before
/// the server does; the server then fails to start and says so.
///
/// # Errors
///
/// The kernel's, if it has none left.
pub fn free(count: usize) -> io::Result<Vec<u16>> {
    // All are held until all are found, lest one be given out twice.
    let listeners: Vec<TcpListener> =
        (0..count).map(|_| TcpListener::bind("127.0.0.1:0")).collect::<io::Result<_>>()?;
    listeners.iter().map(|listener| Ok(listener.local_addr()?.port())).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn free_ports_differ_and_can_be_bound() {
        let ports = free(20).unwrap();
        let different: std::collections::BTreeSet<_> = ports.iter().collect();
        assert_eq!(different.len(), 20);
        let bound = ports.iter().filter(|&&port| TcpListener::bind(("127.0.0.1", port)).is_ok());
        // Another program may have taken some meanwhile, but hardly all.
        assert!(bound.count() > 0);
    }
}
