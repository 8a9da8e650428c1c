//! Counts the connections and requests of each client, by the client's address.

use foldhash::fast::RandomState;
use std::cell::RefCell;
use std::collections::HashMap;
use std::net::IpAddr;

/// When the table shrinks, it still has capacity for this many clients.
const CLIENTS_CAPACITY_MIN: usize = 1024;

/// The number of open connections and requests in progress of each client.
///
/// One client is stored in `inline_client`, all others in `table`. Unless connections per client
/// are limited, only requests count. Most requests end before the next one begins, so usually the
/// only client is the inline one, and no lookup is needed.
///
/// A client without connections and requests is removed from the table, so the table never has more
/// entries than there are connections and requests. An inline client without any is not removed,
/// but replaced by the next new client.
#[derive(Debug, Default)]
pub(crate) struct PerClientCounts {
    inline_client: RefCell<Option<(ClientKey, ClientUsage)>>,
    /// Each request of a client that is not inline needs a lookup, so the hash must be fast. Peers
    /// cannot provoke collisions: the hash is keyed with a secret, and peers see neither hashes nor
    /// the order of entries.
    table: RefCell<HashMap<ClientKey, ClientUsage, RandomState>>,
}

/// The address that identifies a client, as an IPv6 address.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) struct ClientKey(u128);

/// What counts towards a client's limits.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum ClientResource {
    Connection,
    Request,
}

#[derive(Debug, Default)]
struct ClientUsage {
    /// Indexed by [`ClientResource`].
    counts: [usize; 2],
}

impl PerClientCounts {
    /// Counts one more connection or request of this client. Returns false if the client already
    /// has `max`.
    pub(crate) fn try_acquire(
        &self,
        client: ClientKey,
        resource: ClientResource,
        max: usize,
    ) -> bool {
        // If `max` is 0, the code below would store a client without connections and requests.
        if max == 0 {
            return false;
        }
        let mut inline_client = self.inline_client.borrow_mut();
        if let Some((inline_key, usage)) = &mut *inline_client
            && *inline_key == client
        {
            return usage.try_acquire(resource, max);
        }
        let mut table = self.table.borrow_mut();
        if let Some(usage) = table.get_mut(&client) {
            return usage.try_acquire(resource, max);
        }
        let mut usage = ClientUsage::default();
        let has_room = usage.try_acquire(resource, max);
        if inline_client.as_ref().is_none_or(|(_, inline_usage)| inline_usage.is_empty()) {
            *inline_client = Some((client, usage));
        } else {
            table.insert(client, usage);
        }
        has_room
    }

    /// Counts one fewer connection or request of this client.
    pub(crate) fn release(&self, client: ClientKey, resource: ClientResource) {
        if let Some((inline_key, usage)) = &mut *self.inline_client.borrow_mut()
            && *inline_key == client
        {
            return usage.release(resource);
        }
        let mut table = self.table.borrow_mut();
        let Some(usage) = table.get_mut(&client) else { return };
        usage.release(resource);
        if usage.is_empty() {
            table.remove(&client);
            if table.capacity() / 8 > table.len().max(CLIENTS_CAPACITY_MIN) {
                table.shrink_to(CLIENTS_CAPACITY_MIN);
            }
        }
    }

    /// The number of clients with a connection or a request in progress.
    #[cfg(test)]
    pub(crate) fn count(&self) -> usize {
        let inline_client = self.inline_client.borrow();
        let has_active_inline_client =
            inline_client.as_ref().is_some_and(|(_, usage)| !usage.is_empty());
        self.table.borrow().len() + usize::from(has_active_inline_client)
    }
}

impl ClientUsage {
    fn try_acquire(&mut self, resource: ClientResource, max: usize) -> bool {
        let count = &mut self.counts[resource as usize];
        let has_room = *count < max;
        *count += usize::from(has_room);
        has_room
    }

    fn release(&mut self, resource: ClientResource) {
        let count = &mut self.counts[resource as usize];
        *count = count.saturating_sub(1);
    }

    fn is_empty(&self) -> bool {
        self.counts == [0, 0]
    }
}

impl ClientKey {
    /// For IPv6, only the first `ipv6_prefix_len` bits identify the client.
    pub(crate) fn new(address: IpAddr, ipv6_prefix_len: u8) -> Self {
        match address.to_canonical() {
            IpAddr::V6(address) => {
                let host_bits = 128_u32.saturating_sub(u32::from(ipv6_prefix_len));
                let mask = u128::MAX.checked_shl(host_bits).unwrap_or(0);
                Self(address.to_bits() & mask)
            }
            // This cannot equal the key of an IPv6 client: `to_canonical` converts mapped addresses
            // to IPv4.
            IpAddr::V4(address) => Self(address.to_ipv6_mapped().to_bits()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn address(text: &str) -> IpAddr {
        text.parse().expect("an address")
    }

    #[test]
    fn addresses_with_a_common_ipv6_prefix_are_one_client() {
        let table = [
            ("2001:db8:1:2::1", 64, "2001:db8:1:2::"),
            ("2001:db8:1:2:ffff::1", 64, "2001:db8:1:2::"),
            ("2001:db8:1:3::1", 48, "2001:db8:1::"),
            ("2001:db8:1:3::1", 128, "2001:db8:1:3::1"),
            ("2001:db8:1:3::1", 255, "2001:db8:1:3::1"),
            ("2001:db8:1:3::1", 0, "::"),
            ("192.0.2.1", 64, "192.0.2.1"),
            ("::ffff:192.0.2.1", 64, "192.0.2.1"),
        ];
        for (text, prefix, expected) in table {
            let expected = ClientKey::new(address(expected), 128);
            assert_eq!(ClientKey::new(address(text), prefix), expected, "{text}/{prefix}");
        }
    }

    #[test]
    fn client_with_nothing_in_progress_is_removed() {
        let (clients, a) = (PerClientCounts::default(), ClientKey::new(address("192.0.2.1"), 64));
        assert!(
            clients.try_acquire(a, ClientResource::Request, 2)
                && clients.try_acquire(a, ClientResource::Request, 2)
        );
        assert!(!clients.try_acquire(a, ClientResource::Request, 2));
        assert!(
            clients.try_acquire(a, ClientResource::Connection, 1)
                && !clients.try_acquire(a, ClientResource::Connection, 1)
        );
        clients.release(a, ClientResource::Request);
        assert!(clients.try_acquire(a, ClientResource::Request, 2));
        for kind in [ClientResource::Request, ClientResource::Request, ClientResource::Connection] {
            assert_eq!(clients.count(), 1);
            clients.release(a, kind);
        }
        assert_eq!(clients.count(), 0);
        assert!(!clients.try_acquire(a, ClientResource::Request, 0));
        assert_eq!(clients.count(), 0);
    }

    #[test]
    fn clients_are_counted_independently_in_any_order() {
        let clients = PerClientCounts::default();
        let address = |number: u32| ClientKey::new(IpAddr::V4(number.into()), 64);
        let mut counts = [[0_usize; 2]; 5];
        let mut state = 1_u64;
        for step in 0..100_000 {
            // A pseudorandom sequence (a linear congruential generator with Knuth's constants).
            state = state
                .wrapping_mul(6_364_136_223_846_793_005)
                .wrapping_add(1_442_695_040_888_963_407);
            let (index, kind) = ((state >> 40) as usize % 5, (state >> 50) as usize % 2);
            let client = address(index as u32);
            let resource = [ClientResource::Connection, ClientResource::Request][kind];
            let count = &mut counts[index][kind];
            // Phases in which most clients arrive alternate with phases in which most leave.
            let arrives = (state >> 60) as usize % 8 < if step / 100 % 2 == 0 { 6 } else { 2 };
            if arrives {
                assert_eq!(clients.try_acquire(client, resource, 3), *count < 3, "step {step}");
                *count = (*count + 1).min(3);
            } else if *count > 0 {
                clients.release(client, resource);
                *count -= 1;
            }
            let expected = counts.iter().filter(|counts| **counts != [0, 0]).count();
            assert_eq!(clients.count(), expected, "step {step}");
        }
    }

    #[test]
    fn memory_of_many_clients_is_freed() {
        let clients = PerClientCounts::default();
        let address = |number: u32| ClientKey::new(IpAddr::V4(number.into()), 64);
        (0..100_000).for_each(|number| {
            assert!(clients.try_acquire(address(number), ClientResource::Request, 1))
        });
        (0..100_000).for_each(|number| clients.release(address(number), ClientResource::Request));
        let capacity = clients.table.borrow().capacity();
        assert!(capacity < 16 * CLIENTS_CAPACITY_MIN, "{capacity}");
    }
}
