use peregrine::prelude::*;
use std::sync::{Arc, Mutex};
use std::time::Duration;

/// The numbers of free and sold seats, shared by all workers.
#[derive(Clone)]
struct Hall(Arc<Mutex<(u32, u32)>>);

async fn buy(hall: StateRef<Hall>) -> Result<&'static str, Problem> {
    // Reserve the seat first, so that no customer pays for a seat that another one gets.
    let is_reserved = {
        let (free, _) = &mut *hall.0.lock().unwrap();
        free.checked_sub(1).map(|remaining| *free = remaining).is_some()
    };
    if !is_reserved {
        return Err(Problem::new(StatusCode::CONFLICT, "sold-out", "There is no seat left."));
    }
    pay().await;
    hall.0.lock().unwrap().1 += 1;
    Ok("Enjoy the show!")
}

/// Stands in for the slow call to the bank, as a mock would in a test.
async fn pay() {
    tokio::time::sleep(Duration::from_millis(800)).await;
}

fn app(hall: Hall) -> App {
    App::new().post("/seats", buy).state(hall)
}

fn every_seat_is_free_or_sold() {
    peregrine_simulate::seeds(0..100, async |sim| {
        let hall = Hall(Arc::new(Mutex::new((5, 0))));
        let server_hall = hall.clone();
        let server = sim.serve(move || app(server_hall.clone()));
        let mut buyers = Vec::new();
        for _ in 0..8 {
            let timeout = Duration::from_millis(500 + sim.random_below(5_000));
            let request = server.client().post("/seats").timeout(timeout);
            buyers.push(sim.spawn(async move { request.send().await }));
        }
        for buyer in buyers {
            // The buyer got a seat, got none, or disconnected before the response.
            let _ = buyer.await;
        }
        server.graceful_shutdown().await;
        let (free, sold) = *hall.0.lock().unwrap();
        assert_eq!(free + sold, 5, "{free} seats are free, and {sold} are sold");
    });
}
