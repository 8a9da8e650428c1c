//! utoipa: its axum routers, mounted, with their page built into the program; and its macros on our
//! handlers.

use peregrine::DriverChoice;
use peregrine::prelude::*;
use peregrine::tower::Mount;
use peregrine_ecosystem_tests::{base_url, client, end, in_runtime, on_both_drivers, start};
use serde::Serialize;
use serde_json::{Value, json};
use std::sync::Arc;
use utoipa::{OpenApi, ToSchema};
use utoipa_axum::{router::OpenApiRouter, routes};
use utoipa_swagger_ui::{Config, SwaggerUi};

on_both_drivers! {
    the_document_tells_of_what_is_answered,
    the_page_has_all_its_files,
}

#[derive(Serialize, ToSchema)]
struct Bird {
    id: u32,
    name: String,
}

fn bird(id: u32) -> Option<Bird> {
    (id == 7).then(|| Bird { id, name: "hobby".to_owned() })
}

/// axum routes that generate the document.
mod mounted {
    use super::*;

    /// One bird.
    #[utoipa::path(
        get,
        path = "/birds/{id}",
        params(("id" = u32, Path)),
        responses((status = 200, body = Bird), (status = 404))
    )]
    async fn find(
        axum::extract::Path(id): axum::extract::Path<u32>,
    ) -> Result<axum::Json<Bird>, StatusCode> {
        bird(id).map(axum::Json).ok_or(StatusCode::NOT_FOUND)
    }

    pub(super) fn app() -> App {
        let (router, document) = OpenApiRouter::new().routes(routes!(find)).split_for_parts();
        let page = SwaggerUi::new("/docs").url("/openapi.json", document);
        // Mounted at `/`, because the page uses absolute paths.
        App::new().mount("/", router.merge(page))
    }
}

/// The same macros on our handlers. Nothing checks that the path in the macro matches the route.
mod native {
    use super::*;

    /// One bird.
    #[utoipa::path(
        get,
        path = "/birds/{id}",
        params(("id" = u32, Path)),
        responses((status = 200, body = Bird), (status = 404))
    )]
    async fn find(Path(id): Path<u32>) -> Result<Json<Bird>, StatusCode> {
        bird(id).map(Json).ok_or(StatusCode::NOT_FOUND)
    }

    #[derive(OpenApi)]
    #[openapi(paths(find))]
    struct Document;

    type Page = Arc<Config<'static>>;

    fn file(name: &str, page: &Page) -> Response {
        match utoipa_swagger_ui::serve(name, Arc::clone(page)) {
            Ok(Some(file)) => {
                ([("content-type", file.content_type)], file.bytes.into_owned()).into_response()
            }
            Ok(None) => StatusCode::NOT_FOUND.into_response(),
            Err(_) => StatusCode::INTERNAL_SERVER_ERROR.into_response(),
        }
    }

    pub(super) fn app() -> App {
        let page: Page = Arc::new(Config::from("/openapi.json"));
        App::new()
            .state(page)
            .get("/birds/{id}", find)
            .get("/openapi.json", || Json(Document::openapi()))
            .get("/docs/", async |page: StateRef<Page>| file("", &page))
            .get("/docs/{*file}", async |Path(name): Path<String>, page: StateRef<Page>| {
                file(&name, &page)
            })
    }
}

/// A form of the application, with its name.
type Form = (&'static str, fn() -> App);

const FORMS: [Form; 2] = [("mounted", mounted::app), ("native", native::app)];

fn the_document_tells_of_what_is_answered(choice: DriverChoice) {
    for (form, make) in FORMS {
        let Some(running) = start(choice, 1, make) else { return };
        let base = base_url(&running);
        in_runtime(async {
            let get = async |path: &str| {
                client(None).get(format!("{base}{path}")).send().await.expect("the server responds")
            };
            let found: Value = get("/birds/7").await.json().await.expect("the text is JSON");
            assert_eq!(found, json!({"id": 7, "name": "hobby"}), "{form}");
            assert_eq!(get("/birds/8").await.status(), 404, "{form}");
            let document: Value =
                get("/openapi.json").await.json().await.expect("the text is JSON");
            assert_eq!(document["openapi"], "3.1.0", "{form}");
            let operation = &document["paths"]["/birds/{id}"]["get"];
            assert_eq!(operation["summary"], "One bird.", "{form}: {document}");
            assert_eq!(operation["parameters"][0]["in"], "path", "{form}: {document}");
            let schema = &operation["responses"]["200"]["content"]["application/json"]["schema"];
            assert_eq!(schema["$ref"], "#/components/schemas/Bird", "{form}: {document}");
            let bird = &document["components"]["schemas"]["Bird"];
            assert_eq!(bird["required"], json!(["id", "name"]), "{form}: {document}");
        });
        end(running);
    }
}

fn the_page_has_all_its_files(choice: DriverChoice) {
    for (form, make) in FORMS {
        let Some(running) = start(choice, 1, make) else { return };
        let base = base_url(&running);
        in_runtime(async {
            let get = async |path: &str| {
                let response = client(None).get(format!("{base}{path}")).send().await;
                let response = response.expect("the server responds");
                let (status, headers) = (response.status(), response.headers().clone());
                (status, headers, response.text().await.expect("a body"))
            };
            let (status, headers, page) = get("/docs/").await;
            assert_eq!(status, 200, "{form}");
            let kind = headers["content-type"].to_str().expect("the header value is text");
            assert!(kind.starts_with("text/html"), "{form}: {kind}");
            assert!(page.contains("<title>Swagger UI</title>"), "{form}: {page}");
            for (file, kind, has) in [
                ("swagger-initializer.js", "javascript", "/openapi.json"),
                ("swagger-ui.css", "css", ".swagger-ui"),
                ("swagger-ui-bundle.js", "javascript", "SwaggerUIBundle"),
            ] {
                assert!(page.contains(file), "{form}: the page refers to {file}");
                let (status, headers, text) = get(&format!("/docs/{file}")).await;
                assert_eq!(status, 200, "{form}: {file}");
                let content_type =
                    headers["content-type"].to_str().expect("the header value is text");
                assert!(content_type.contains(kind), "{form}: {file} is {content_type}");
                assert!(text.contains(has), "{form}: {file}");
            }
            assert_eq!(get("/docs/nothing.js").await.0, 404, "{form}");
        });
        end(running);
    }
}
