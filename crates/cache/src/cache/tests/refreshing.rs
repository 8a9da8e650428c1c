//! Newer responses that are fetched beside, and what comes of them.

use super::*;
use peregrine_compression::{Compression, Uncompressed};

#[test]
fn what_must_not_be_compressed_is_not_when_it_comes_from_the_cache() {
    run(async {
        let page = |request: Request| {
            let fields = [("cache-control", "max-age=10"), ("etag", "\"1\"")];
            match request.header("if-none-match") {
                Some(_) => (StatusCode::NOT_MODIFIED, fields).into_response(),
                None => (Uncompressed, fields, "secret ".repeat(1000)).into_response(),
            }
        };
        let app = App::new().with(Compression::new()).with(Cache::new(CacheStore::new()));
        let client = app.get("/", page).test();
        for age in [None, Some("0"), None, Some("0")] {
            let response = client.get("/").header("accept-encoding", "gzip").send().await;
            // What was validated has an age of its own again.
            assert_eq!(response.header("content-encoding"), None, "{age:?}");
            assert_eq!(response.bytes().len(), 7000);
            sleep(if age.is_some() { 20 * SECOND } else { Duration::ZERO }).await;
        }
    });
}
