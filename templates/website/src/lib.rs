//! The application. `main.rs` serves it, and the tests call it.

mod guestbook;

use peregrine::files::Files;
use peregrine::middleware::security_headers::Csp;
use peregrine::prelude::*;

/// Style and pictures, which are part of the program.
#[derive(rust_embed::Embed)]
#[folder = "assets"]
struct Assets;

/// What each worker serves.
pub fn app() -> App {
    // Nothing but our own style and pictures is loaded, and forms send to us alone.
    let csp = Csp::new()
        .default_src(["'none'"])
        .style_src(["'self'"])
        .img_src(["'self'"])
        .form_action(["'self'"])
        .base_uri(["'none'"]);
    App::new()
        .with(RequestId::new())
        .with(SecurityHeaders::new().csp(csp))
        .with(Csrf::new())
        .merge(guestbook::routes())
        .subtree("/assets", Files::embedded::<Assets>().no_index())
}
