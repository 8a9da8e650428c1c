//! A process that is out of descriptors.

use crate::own_process;
use peregrine_files::Files;
use peregrine_web::App;
use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
use std::fs::{self, File};
use std::iter;

#[test]
fn files_that_are_kept_open_make_room_for_others() {
    if own_process::delegate("descriptors::files_that_are_kept_open_make_room_for_others") {
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
    let few = Rlimit { current: Some(200), maximum: limit.maximum };
    setrlimit(Resource::Nofile, few).expect("the limit can be lowered");
    let open = || File::open("/dev/null").ok();
    let rest: Vec<File> = iter::from_fn(open).collect();
    assert!(rest.len() < 200, "the limit applies");
    let reached = [status("small.txt"), status("1")];
    let others: Vec<File> = iter::from_fn(open).collect();
    let is_back = others.len();
    // All cached files are open, and there is nothing left to close.
    let none = status("2");
    drop((rest, others));
    setrlimit(Resource::Nofile, limit).expect("the limit can be raised again");
    assert_eq!((reached, none), ([200, 200], 503), "{is_back} descriptors were released");
    assert!(is_back >= 60);
}
