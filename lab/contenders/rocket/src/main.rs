//! The rival Rocket, as its guide shows it: attribute routes, request guards, a fairing, and its
//! configuration's release profile. One launch serves one port, so that HTTPS is a second launch.

mod hooks;
mod model;
mod resources;
mod settings;

use std::time::Duration;

use rocket::data::{ByteUnit, Data};
use rocket::figment::Figment;
use rocket::http::Status;
use rocket::serde::json::Json;
use rocket::tokio::io::AsyncReadExt;
use rocket::tokio::{time, try_join};
use rocket::{Build, Config, Rocket, get, post, routes};

use hooks::{Hooks, RequestId};
use model::{
    Event, Example, Health, HookState, LARGE, Large, Message, Recorded, SLEEP_MS_MAX,
    UPLOAD_BYTES_MAX, Upload, Uploaded,
};
use settings::{Settings, Tls};

#[global_allocator]
static ALLOCATOR: mimalloc::MiMalloc = mimalloc::MiMalloc;

#[rocket::main]
async fn main() -> Result<(), Box<rocket::Error>> {
    let settings = Settings::from_environment();
    let figment = Config::figment().merge(("log_level", "off"));
    let plain = application(figment.clone().merge(("port", settings.port)));
    match settings.tls {
        None => {
            plain.launch().await?;
        }
        Some(Tls { port, certificates, key }) => {
            let secure = figment
                .merge(("port", port))
                .merge(("tls.certs", certificates))
                .merge(("tls.key", key));
            try_join!(plain.launch(), application(secure).launch())?;
        }
    }
    Ok(())
}

fn application(figment: Figment) -> Rocket<Build> {
    rocket::custom(figment)
        .attach(Hooks)
        .mount(
            "/",
            routes![
                root,
                hello,
                json,
                health,
                example,
                json_sort,
                json_complex,
                record,
                upload,
                large,
                sleep
            ],
        )
        .mount("/", resources::routes())
}

#[get("/")]
fn root() -> &'static str {
    "Hello, World!"
}

#[get("/hello")]
fn hello() -> &'static str {
    "Hello, World"
}

#[get("/json")]
fn json() -> Json<Message> {
    Json(Message { message: "Hello, World!" })
}

#[get("/api/v1/health")]
fn health() -> Json<Health> {
    Json(Health { status: "ok" })
}

#[get("/example")]
fn example() -> Json<Example> {
    Json(Example::new())
}

#[post("/json-sort", data = "<numbers>")]
fn json_sort(mut numbers: Json<Vec<i64>>) -> Json<Vec<i64>> {
    numbers.sort_unstable();
    numbers
}

#[post("/json-complex", data = "<example>")]
fn json_complex(example: Json<Example>) -> String {
    example.into_inner().a
}

#[post("/projects/<project_id>/events?<tenant>&<include>", data = "<event>")]
fn record(
    project_id: String,
    tenant: String,
    include: Option<String>,
    request_id: RequestId,
    state: &HookState,
    event: Json<Event>,
) -> Result<(Status, Json<Recorded>), Status> {
    // Read from the wire and typed, as the workload asks; not used.
    let _ = include;
    if state.after != "done" {
        return Err(Status::InternalServerError);
    }
    let event = event.into_inner();
    if !event.is_complete() {
        return Err(Status::UnprocessableEntity);
    }
    let recorded = Recorded::new(project_id, tenant, request_id.0, event);
    Ok((Status::Created, Json(recorded)))
}

#[post("/upload", data = "<body>")]
async fn upload(body: Data<'_>) -> Result<Json<Uploaded>, Status> {
    let mut upload = Upload::default();
    let mut piece = vec![0; 64 << 10];
    // One byte more than is allowed, so that a body that is too long can be told.
    let mut stream = body.open(ByteUnit::from(UPLOAD_BYTES_MAX + 1));
    loop {
        let length = stream.read(&mut piece).await.map_err(|_| Status::BadRequest)?;
        if length == 0 {
            return Ok(Json(upload.finish()));
        }
        if !upload.add(&piece[..length]) {
            return Err(Status::PayloadTooLarge);
        }
    }
}

#[get("/large")]
fn large() -> Json<&'static Large> {
    Json(&*LARGE)
}

#[get("/sleep/<ms>")]
async fn sleep(ms: u64) -> Result<String, Status> {
    if ms > SLEEP_MS_MAX {
        return Err(Status::BadRequest);
    }
    time::sleep(Duration::from_millis(ms)).await;
    Ok(ms.to_string())
}
