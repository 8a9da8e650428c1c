//! Counts the connections and requests of each client, by the client's address.

use foldhash::fast::RandomState;
use std::cell::RefCell;
use std::collections::HashMap;
use std::net::IpAddr;

/// When the table shrinks, it keeps room for this many clients.
const CLIENTS_CAPACITY_MIN: usize = 1024;

/// The number of open connections and requests in progress of each client. A client with neither is
/// removed, except possibly `latest`, so the table never has more entries than there are
/// connections and requests.
///
/// Most requests end before the next one begins. The client of such a request is stored in
/// `latest`, outside the table, so that no lookup is needed. A client is either in `latest` or in
/// the table, never in both.
#[derive(Debug, Default)]
pub(crate) struct PerClientLimits {
    latest: RefCell<Option<(ClientKey, ClientUsage)>>,
    /// Used for each request, so the hash must be fast. Peers cannot provoke collisions: the hash
    /// is keyed with a secret, and peers see neither hashes nor the order of entries.
    all: RefCell<HashMap<ClientKey, ClientUsage, RandomState>>,
}

/// The address that identifies a client, as an IPv6 address.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) struct ClientKey(u128);

/// What is counted for a client.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum ClientResource {
    Connection,
    Request,
}

#[derive(Debug, Default)]
struct ClientUsage {
    counts: [usize; 2],
}

impl PerClientLimits {
    /// Counts one more for this client. Returns false if the client has reached the limit.
    pub(crate) fn try_acquire(&self, client: ClientKey, kind: ClientResource, most: usize) -> bool {
        if most == 0 {
            return false;
        }
        let mut latest = self.latest.borrow_mut();
        if let Some((address, taken)) = &mut *latest
            && *address == client
        {
            return taken.try_acquire(kind, most);
        }
        let mut all = self.all.borrow_mut();
        if let Some(taken) = all.get_mut(&client) {
            return taken.try_acquire(kind, most);
        }
        let mut taken = ClientUsage::default();
        let is_room = taken.try_acquire(kind, most);
        if latest.as_ref().is_none_or(|(_, taken)| taken.is_nothing()) {
            *latest = Some((client, taken));
        } else {
            all.insert(client, taken);
        }
        is_room
    }

    /// Counts one less.
    pub(crate) fn release(&self, client: ClientKey, kind: ClientResource) {
        if let Some((address, taken)) = &mut *self.latest.borrow_mut()
            && *address == client
        {
            return taken.release(kind);
        }
        let mut all = self.all.borrow_mut();
        let Some(taken) = all.get_mut(&client) else { return };
        taken.release(kind);
        if taken.is_nothing() {
            all.remove(&client);
            if all.capacity() / 8 > all.len().max(CLIENTS_CAPACITY_MIN) {
                all.shrink_to(CLIENTS_CAPACITY_MIN);
            }
        }
    }

    /// The number of clients with a connection or a request in progress.
    #[cfg(test)]
    pub(crate) fn count(&self) -> usize {
        let latest = self.latest.borrow();
        let is_one = latest.as_ref().is_some_and(|(_, taken)| !taken.is_nothing());
        self.all.borrow().len() + usize::from(is_one)
    }
}

impl ClientUsage {
    fn try_acquire(&mut self, kind: ClientResource, most: usize) -> bool {
        let count = &mut self.counts[kind as usize];
        let is_room = *count < most;
        *count += usize::from(is_room);
        is_room
    }

    fn release(&mut self, kind: ClientResource) {
        let count = &mut self.counts[kind as usize];
        *count = count.saturating_sub(1);
    }

    fn is_nothing(&self) -> bool {
        self.counts == [0, 0]
    }
}

impl ClientKey {
    /// For IPv6, only the first `prefix_v6` bits identify the client.
    pub(crate) fn of(address: IpAddr, prefix_v6: u8) -> Self {
        match address.to_canonical() {
            IpAddr::V6(address) => {
                let rest = 128_u32.saturating_sub(u32::from(prefix_v6));
                let mask = u128::MAX.checked_shl(rest).unwrap_or(0);
                Self(address.to_bits() & mask)
            }
            // No conflict with an IPv6 client is possible: mapped addresses are IPv4 addresses.
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
    fn a_household_is_one_client() {
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
        for (given, prefix, expected) in table {
            let expected = ClientKey::of(address(expected), 128);
            assert_eq!(ClientKey::of(address(given), prefix), expected, "{given}/{prefix}");
        }
    }

    #[test]
    fn who_has_nothing_in_progress_takes_no_place() {
        let (clients, a) = (PerClientLimits::default(), ClientKey::of(address("192.0.2.1"), 64));
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
    fn clients_are_counted_each_for_itself_whatever_the_order() {
        let clients = PerClientLimits::default();
        let address = |number: u32| ClientKey::of(IpAddr::V4(number.into()), 64);
        let mut counts = [[0_usize; 2]; 5];
        let mut state = 1_u64;
        for step in 0..100_000 {
            // These numbers only need to differ from each other (Knuth's constants).
            state = state
                .wrapping_mul(6_364_136_223_846_793_005)
                .wrapping_add(1_442_695_040_888_963_407);
            let (at, kind) = ((state >> 40) as usize % 5, (state >> 50) as usize % 2);
            let client = address(at as u32);
            let which = [ClientResource::Connection, ClientResource::Request][kind];
            let count = &mut counts[at][kind];
            // Phases in which most clients arrive alternate with phases in which most leave.
            let comes = (state >> 60) as usize % 8 < if step / 100 % 2 == 0 { 6 } else { 2 };
            if comes {
                assert_eq!(clients.try_acquire(client, which, 3), *count < 3, "step {step}");
                *count = (*count + 1).min(3);
            } else if *count > 0 {
                clients.release(client, which);
                *count -= 1;
            }
            let some = counts.iter().filter(|counts| **counts != [0, 0]).count();
            assert_eq!(clients.count(), some, "step {step}");
        }
    }

    #[test]
    fn memory_of_many_clients_is_given_back() {
        let clients = PerClientLimits::default();
        let address = |number: u32| ClientKey::of(IpAddr::V4(number.into()), 64);
        (0..100_000).for_each(|number| {
            assert!(clients.try_acquire(address(number), ClientResource::Request, 1))
        });
        (0..100_000).for_each(|number| clients.release(address(number), ClientResource::Request));
        let capacity = clients.all.borrow().capacity();
        assert!(capacity < 16 * CLIENTS_CAPACITY_MIN, "{capacity}");
    }
}
