//! A process that is out of descriptors.

use crate::own_process;
use peregrine_files::Files;
use peregrine_web::App;
use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
use std::fs::{self, File};
use std::iter;

#[test]
fn cached_open_files_are_closed_for_other_requests() {
    if own_process::delegate("descriptors::cached_open_files_are_closed_for_other_requests") {
        return;
    }
    let folder = tempfile::tempdir().expect("a directory");
    fs::write(folder.path().join("small.txt"), "small").expect("the disk has space");
    for name in 0..64 {
        let path = folder.path().join(name.to_string());
        fs::write(path, vec![0; 70_000]).expect("the disk has space");
    }
    let client = App::new().subtree("/f", Files::dir(folder.path())).test();
    let status = |path: &str| client.get(&format!("/f/{path}")).send_blocking().status().as_u16();
    for name in 0..64 {
        assert_eq!(status(&name.to_string()), 200);
    }

    let limit = getrlimit(Resource::Nofile);
    let low_limit = Rlimit { current: Some(200), maximum: limit.maximum };
    setrlimit(Resource::Nofile, low_limit).expect("the limit can be lowered");
    let open = || File::open("/dev/null").ok();
    let held: Vec<File> = iter::from_fn(open).collect();
    assert!(held.len() < 200, "the limit applies");
    let statuses = [status("small.txt"), status("1")];
    let released: Vec<File> = iter::from_fn(open).collect();
    let released_count = released.len();
    // All cached files are open, and there is nothing left to close.
    let exhausted = status("2");
    drop((held, released));
    setrlimit(Resource::Nofile, limit).expect("the limit can be raised again");
    assert_eq!(
        (statuses, exhausted),
        ([200, 200], 503),
        "{released_count} descriptors were released"
    );
    assert!(released_count >= 60);
}
