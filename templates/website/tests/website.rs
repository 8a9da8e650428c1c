//! The site, called in process.

use app::app;

#[test]
fn whoever_signs_is_shown_and_nothing_of_it_is_markup() {
    let client = app().test().follow_redirects();
    let entry = [("name", "Ada"), ("words", "<script>alert(1)</script>")];
    let page = client
        .post("/")
        .form(&entry)
        .send_blocking()
        .assert_status(200)
        .text();
    assert!(page.contains("Ada") && !page.contains("<script>"), "{page}");
}

#[test]
fn a_form_without_a_name_is_shown_again() {
    let empty = [("name", " "), ("words", "")];
    let page = app()
        .test()
        .post("/")
        .form(&empty)
        .send_blocking()
        .assert_status(422)
        .text();
    assert!(page.contains("A name"), "{page}");
}

#[test]
fn other_sites_send_no_forms_and_pages_load_nothing_from_elsewhere() {
    let client = app().test();
    let entry = [("name", "Eve"), ("words", "")];
    let foreign = client
        .post("/")
        .header("sec-fetch-site", "cross-site")
        .form(&entry)
        .send_blocking();
    foreign.assert_status(403);
    let page = client.get("/").send_blocking();
    page.assert_status(200);
    assert!(
        page.header("content-security-policy")
            .is_some_and(|csp| csp.contains("default-src 'none'"))
    );
    client
        .get("/assets/style.css")
        .send_blocking()
        .assert_status(200);
}
