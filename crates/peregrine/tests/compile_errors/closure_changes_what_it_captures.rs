//! A closure that mutates a captured value, and so is only `FnMut`.

use peregrine::prelude::*;

pub fn app() -> App {
    let mut count = 0;
    App::new().get("/", move || {
        count += 1;
        count.to_string()
    })
}
