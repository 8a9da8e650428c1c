//! A closure that changes what it captures is `FnMut`.

use peregrine::prelude::*;

pub fn app() -> App {
    let mut count = 0;
    App::new().get("/", move || {
        count += 1;
        count.to_string()
    })
}
