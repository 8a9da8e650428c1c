//! A state that is not `Clone`.

use peregrine::prelude::*;

pub struct Counter(pub u64);

async fn show(State(counter): State<Counter>) -> String {
    counter.0.to_string()
}

pub fn app() -> App {
    App::new().get("/", show).state(Counter(0))
}
