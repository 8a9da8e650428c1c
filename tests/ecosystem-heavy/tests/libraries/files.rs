//! `ServeDir` of tower-http 0.7, mounted: a tower service that needs no router.

use peregrine::DriverChoice;
use peregrine::prelude::App;
use peregrine::tower::Mount;
use peregrine_ecosystem_tests::{base_url, client, end, in_runtime, on_both_drivers, start};
use std::fs;
use tower_http::services::ServeDir;

on_both_drivers! {
    a_folder_is_served_with_conditions_and_ranges,
    a_folder_without_its_slash_redirects_to_the_configured_prefix,
}

/// A folder with a file, and a subfolder with an index page.
fn folder() -> tempfile::TempDir {
    let folder = tempfile::tempdir().expect("a folder");
    fs::write(folder.path().join("bird.txt"), "a hobby").expect("a file");
    fs::write(folder.path().join("large.bin"), vec![7; 3_000_000]).expect("a file");
    fs::create_dir(folder.path().join("nest")).expect("a folder");
    fs::write(folder.path().join("nest/index.html"), "<h1>nest</h1>").expect("a file");
    folder
}

fn a_folder_is_served_with_conditions_and_ranges(choice: DriverChoice) {
    let folder = folder();
    let files = ServeDir::new(folder.path());
    let Some(running) = start(choice, 2, move || App::new().mount("/files", files.clone())) else {
        return;
    };
    let base = format!("{}/files", base_url(&running));
    in_runtime(async {
        let client = client(None);
        let get = |path: &str| client.get(format!("{base}/{path}"));
        let file = get("bird.txt").send().await.expect("the server responds");
        assert_eq!(file.headers()["content-type"], "text/plain");
        let tag = file.headers()["etag"].clone();
        assert_eq!(file.text().await.expect("a body"), "a hobby");
        let same = get("bird.txt").header("if-none-match", tag).send().await;
        assert_eq!(same.expect("the server responds").status(), 304, "new in 0.7");
        let part = get("bird.txt").header("range", "bytes=2-").send().await;
        let part = part.expect("the server responds");
        assert_eq!(part.status(), 206);
        assert_eq!(part.text().await.expect("a body"), "hobby");
        let large = get("large.bin").send().await.expect("the server responds");
        let large = large.bytes().await.expect("a body");
        assert!(large.len() == 3_000_000 && large.iter().all(|&byte| byte == 7));
        let index = get("nest/").send().await.expect("the server responds");
        assert_eq!(index.text().await.expect("a body"), "<h1>nest</h1>");
        for (path, status) in
            [("nothing", 404), ("%2e%2e/secret", 404), ("nest/..%2fbird.txt", 400)]
        {
            let refused = get(path).send().await.expect("the server responds");
            assert_eq!(refused.status(), status, "{path}");
        }
        let posted = client.post(format!("{base}/bird.txt")).send().await;
        assert_eq!(posted.expect("the server responds").status(), 405);
    });
    end(running);
}

/// It sees the path without the prefix, as under `nest_service`.
fn a_folder_without_its_slash_redirects_to_the_configured_prefix(choice: DriverChoice) {
    let folder = folder();
    let files = ServeDir::new(folder.path());
    let make = move || {
        let prefixed = files.clone().redirect_path_prefix("/prefixed");
        App::new().mount("/plain", files.clone()).mount("/prefixed", prefixed)
    };
    let Some(running) = start(choice, 1, make) else { return };
    let base = base_url(&running);
    in_runtime(async {
        // The client follows redirects.
        for (prefix, led_to, status) in
            [("plain", "/nest/", 404), ("prefixed", "/prefixed/nest/", 200)]
        {
            let led = client(None).get(format!("{base}/{prefix}/nest")).send().await;
            let led = led.expect("the server responds");
            assert_eq!((led.url().path(), led.status().as_u16()), (led_to, status));
        }
    });
    end(running);
}
