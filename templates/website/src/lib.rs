//! The application, which `main.rs` serves and the tests call.

mod guestbook;

use peregrine::files::Files;
use peregrine::middleware::security_headers::Csp;
use peregrine::prelude::*;

/// The style sheet and pictures, embedded in the program.
#[derive(rust_embed::Embed)]
#[folder = "assets"]
struct Assets;

/// The application of one worker.
pub fn app() -> App {
    // Pages load only their own style sheets and pictures, and forms submit only to this site.
    let csp = Csp::new()
        .default_src(["'none'"])
        .style_src(["'self'"])
        .img_src(["'self'"])
        .form_action(["'self'"])
        .base_uri(["'none'"]);
    App::new()
        .wrap(RequestId::new())
        .wrap(SecurityHeaders::new().csp(csp))
        .wrap(Csrf::new())
        .merge(guestbook::routes())
        .subtree("/assets", Files::embedded::<Assets>().no_index())
}
