//! CPUs are divided so that server and client share as little as they can.

use peregrine_lab_host::cpu_list;
use peregrine_lab_host::cpu_sets::{CpuSets, SetsError, Side, Wish, choose};
use peregrine_lab_host::topology::Topology;

use crate::machine::{Machine, Shared, both};

fn wish(server: &str, client: &str) -> Wish {
    let list = |text: &str| (!text.is_empty()).then(|| text.to_owned());
    Wish { server: list(server), client: list(client), server_cores_max: None }
}

fn chosen(machine: &Machine, wish: &Wish) -> Result<CpuSets, SetsError> {
    choose(&Topology::read(&machine.root), wish)
}

/// Both lists as text.
fn lists(machine: &Machine, wish: &Wish) -> (String, String) {
    let sets = chosen(machine, wish).unwrap();
    (cpu_list::format(&sets.server), cpu_list::format(&sets.client))
}

fn pair(server: &str, client: &str) -> (String, String) {
    (server.to_owned(), client.to_owned())
}

#[test]
fn each_machine_is_divided_along_what_its_cpus_share() {
    let nothing = Wish::default();
    assert_eq!(lists(&Machine::small_guest(), &nothing), pair("0", "1"));
    assert_eq!(lists(&Machine::desktop(), &nothing), pair("0-7,16-23", "8-15,24-31"));
    assert_eq!(
        lists(&Machine::two_sockets(), &nothing),
        pair("0,2,4,6,8,10,12,14", "1,3,5,7,9,11,13,15")
    );
    assert_eq!(lists(&Machine::container(), &nothing), pair("2-3", "4-5"));
}

#[test]
fn a_small_server_leaves_its_cache_to_itself() {
    let wish = Wish { server_cores_max: Some(2), ..Wish::default() };
    assert_eq!(lists(&Machine::desktop(), &wish), pair("0-1,16-17", "8-15,24-31"));
    let all_but_one = Wish { server_cores_max: Some(99), ..Wish::default() };
    assert_eq!(lists(&Machine::small_guest(), &all_but_one), pair("0", "1"));
}

#[test]
fn uneven_caches_are_not_split_and_no_side_is_starved() {
    let mut shared = Shared::plain(10, 1, 1);
    shared.caches = vec![(0..4).collect(), (4..10).collect()];
    assert_eq!(lists(&Machine::tuned(&shared), &Wish::default()), pair("0-3", "4-9"));
    shared.caches = vec![(0..1).collect(), (1..10).collect()];
    assert_eq!(lists(&Machine::tuned(&shared), &Wish::default()), pair("0-4", "5-9"));
}

#[test]
fn one_given_side_leaves_the_other_the_cores_it_does_not_touch() {
    let desktop = Machine::desktop();
    assert_eq!(lists(&desktop, &wish("0", "")), pair("0", "1-15,17-31"));
    assert_eq!(lists(&desktop, &wish("", "0-14")), pair("15,31", "0-14"));
    assert_eq!(lists(&desktop, &wish("0,16", "1,17")), pair("0,16", "1,17"));
}

#[test]
fn a_wrong_wish_is_refused_with_what_is_wrong() {
    let desktop = Machine::desktop();
    let refused = |server: &str, client: &str| {
        chosen(&desktop, &wish(server, client)).unwrap_err().to_string()
    };
    assert_eq!(
        refused("0-x", ""),
        "the server's CPUs: \"0-x\" is no CPU number and no range; a list looks like 0,2-5"
    );
    assert_eq!(
        refused("", "30-40"),
        "the client's CPUs 32-40 are not among those that this process may use (0-31)"
    );
    assert_eq!(refused("0-3", "2-5"), "CPUs 2-3 are given to server and client at once");
    assert!(refused("0-3", "16").starts_with("CPU 0 (server) and CPU 16 (client) are one core"));
    assert!(refused("0-15", "").starts_with("no whole core is left for the client"));
    let zero = Wish { server_cores_max: Some(0), ..Wish::default() };
    assert_eq!(chosen(&desktop, &zero).unwrap_err(), SetsError::NoServerCores);
    let one = Machine::tuned(&Shared::plain(1, 1, 1));
    let error = chosen(&one, &Wish::default()).unwrap_err();
    assert_eq!(error, SetsError::OneCore([0].into()));
    let strange = chosen(&one, &wish("", "5")).unwrap_err();
    assert_eq!(strange, SetsError::NotAllowed(Side::Client, [5].into(), [0].into()));
}

#[test]
fn what_both_sides_share_is_remarked() {
    let remarks = |machine: &Machine, wish: &Wish| chosen(machine, wish).unwrap().remarks;
    assert!(remarks(&Machine::desktop(), &Wish::default()).is_empty());
    let guest = remarks(&Machine::small_guest(), &Wish::default());
    assert!(guest[0].starts_with("Server and client share a last-level cache"), "{guest:?}");
    let across = remarks(&Machine::two_sockets(), &wish("0-3", "4"));
    assert!(across.iter().any(|text| text == "The server runs on more than one socket."));
    let silent = Machine::desktop();
    for cpu in 0..32 {
        silent.remove(&format!("/sys/devices/system/cpu/cpu{cpu}/topology"));
    }
    assert!(remarks(&silent, &Wish::default())[0].starts_with("The kernel does not say"));
}

#[test]
fn the_topology_is_read_as_it_is() {
    let topology = Topology::read(&Machine::desktop().root);
    assert!(topology.is_known && topology.has_siblings());
    assert_eq!(topology.cores.len(), 16);
    assert_eq!(topology.caches, [both(0..8, 16), both(8..16, 16)]);
    let container = Topology::read(&Machine::container().root);
    assert_eq!(container.allowed, (2..6).collect());
    assert_eq!(container.caches, [(2..6).collect()]);
}
