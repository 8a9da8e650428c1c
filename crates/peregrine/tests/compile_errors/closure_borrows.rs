//! A closure that borrows from the function around it.

use peregrine::prelude::*;

pub fn app() -> App {
    let greeting = String::from("hello");
    App::new().get("/", || greeting.clone())
}
