//! The routes, with those batteries that are part of a handler.

use actix_multipart::Multipart;
use actix_session::Session;
use actix_web::cookie::{Cookie, CookieJar, Key, SameSite};
use actix_web::web::{Data, JsonConfig, ServiceConfig};
use actix_web::{Error, HttpRequest, HttpResponse, error, web};
use futures_util::TryStreamExt;
use garde::Validate;

use crate::model::{Items, Message, Person, SECRET, Upload, Uploaded};

pub fn routes(battery: &str, config: &mut ServiceConfig) {
    match battery {
        "signed-cookie" => config
            .app_data(Data::new(Key::from(&SECRET)))
            .route("/json", web::get().to(with_cookie)),
        "session-cookie" => config.route("/json", web::get().to(with_session)),
        _ => config.route("/json", web::get().to(json)),
    };
    match battery {
        "validate" => config.route("/people", web::post().to(judged)),
        _ => config.route("/people", web::post().to(unjudged)),
    };
    if battery == "body-limit" {
        config.app_data(JsonConfig::default().limit(64 << 10));
    }
    config
        .route("/items", web::get().to(items))
        .route("/form", web::post().to(counted))
        .route("/form/hashed", web::post().to(hashed));
}

async fn json() -> web::Json<Message> {
    web::Json(Message::hello())
}

async fn with_cookie(request: HttpRequest, keys: Data<Key>) -> Result<HttpResponse, Error> {
    let mut jar = CookieJar::new();
    if let Some(cookie) = request.cookie("theme") {
        jar.add_original(cookie);
    }
    if jar.signed(&keys).get("theme").is_none_or(|theme| theme.value() != "dark") {
        return Err(error::ErrorForbidden("no cookie of this server"));
    }
    let cookie = Cookie::build("theme", "dark").path("/").http_only(true).same_site(SameSite::Lax);
    jar.signed_mut(&keys).add(cookie.finish());
    let mut response = HttpResponse::Ok();
    for cookie in jar.delta() {
        response.cookie(cookie.clone());
    }
    Ok(response.json(Message::hello()))
}

async fn with_session(session: Session) -> Result<web::Json<Message>, Error> {
    match session.get::<u32>("user")? {
        Some(7) => Ok(web::Json(Message::hello())),
        _ => {
            session.insert("user", 7)?;
            Err(error::ErrorForbidden("no session of this server"))
        }
    }
}

async fn items() -> web::Json<&'static Items> {
    web::Json(Items::shared())
}

async fn judged(person: web::Json<Person>) -> Result<web::Json<Message>, Error> {
    person.validate().map_err(error::ErrorUnprocessableEntity)?;
    Ok(web::Json(Message::hello()))
}

async fn unjudged(person: web::Json<Person>) -> web::Json<Message> {
    drop(person);
    web::Json(Message::hello())
}

async fn counted(form: Multipart) -> Result<web::Json<Uploaded>, Error> {
    received(form, Upload::counted()).await
}

async fn hashed(form: Multipart) -> Result<web::Json<Uploaded>, Error> {
    received(form, Upload::hashed()).await
}

async fn received(mut form: Multipart, mut upload: Upload) -> Result<web::Json<Uploaded>, Error> {
    while let Some(mut field) = form.try_next().await? {
        if field.name() != Some("file") {
            continue;
        }
        while let Some(piece) = field.try_next().await? {
            upload.receive(&piece);
        }
    }
    Ok(web::Json(upload.finish()))
}
