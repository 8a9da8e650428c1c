//! A closure that gives away what it captures is `FnOnce`.

use peregrine::prelude::*;

pub fn app() -> App {
    let greeting = String::from("hello");
    App::new().get("/", move || greeting)
}
