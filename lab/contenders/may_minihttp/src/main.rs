//! The rival may_minihttp, as its examples show it: a service on stackful coroutines. It has no
//! router, no hooks and no extractors, so that routes are matched by hand.

mod handlers;
mod model;
mod routes;
mod settings;

use std::io;
use std::net::Ipv4Addr;

use may_minihttp::{HttpServer, HttpService, Request, Response};

use settings::Settings;

#[global_allocator]
static ALLOCATOR: mimalloc::MiMalloc = mimalloc::MiMalloc;

#[derive(Clone)]
struct Application;

impl HttpService for Application {
    fn call(&mut self, request: Request, response: &mut Response) -> io::Result<()> {
        routes::answer(request, response)
    }
}

fn main() -> io::Result<()> {
    let settings = Settings::from_environment();
    may::config().set_workers(settings.workers);
    let server = HttpServer(Application).start((Ipv4Addr::LOCALHOST, settings.port))?;
    server.join().map_err(|_| io::Error::other("the server's coroutine panicked"))
}
