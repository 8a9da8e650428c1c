//! A closure that borrows from the enclosing function.

use peregrine::prelude::*;

pub fn app() -> App {
    let greeting = String::from("hello");
    App::new().get("/", || greeting.clone())
}
