//! A closure that moves out of a captured value, and so is only `FnOnce`.

use peregrine::prelude::*;

pub fn app() -> App {
    let greeting = String::from("hello");
    App::new().get("/", move || greeting)
}
