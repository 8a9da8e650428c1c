//! A small JSON service with typed paths, queries and bodies, shared state, problems and tests.
//!
//! `curl -d '{"text":"fly"}' -H 'content-type: application/json' localhost:8080/todos`
#![forbid(unsafe_code)]

use peregrine::prelude::*;
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, PoisonError};

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
struct Todo {
    id: u64,
    text: String,
    done: bool,
}

#[derive(Deserialize)]
struct NewTodo {
    text: String,
}

#[derive(Deserialize)]
struct Change {
    text: Option<String>,
    done: Option<bool>,
}

#[derive(Deserialize)]
struct Page {
    #[serde(default)]
    offset: usize,
    #[serde(default = "Page::limit")]
    limit: usize,
}

impl Page {
    fn limit() -> usize {
        100
    }
}

/// The state that all workers share: created once and cloned into each worker's application.
#[derive(Clone, Default)]
struct Todos(Arc<Mutex<Table>>);

#[derive(Default)]
struct Table {
    /// The last id assigned. Ids are never reused, not even those of deleted todos.
    last_id: u64,
    all: BTreeMap<u64, Todo>,
}

impl Todos {
    fn with<T>(&self, work: impl FnOnce(&mut Table) -> T) -> T {
        work(&mut self.0.lock().unwrap_or_else(PoisonError::into_inner))
    }
}

fn unknown(id: u64) -> Problem {
    Problem::new(StatusCode::NOT_FOUND, "unknown-todo", format!("There is no todo {id}."))
}

async fn list(Query(page): Query<Page>, todos: StateRef<Todos>) -> Json<Vec<Todo>> {
    let page = |table: &mut Table| {
        table.all.values().skip(page.offset).take(page.limit).cloned().collect()
    };
    Json(todos.with(page))
}

async fn create(
    todos: StateRef<Todos>,
    Json(new): Json<NewTodo>,
) -> Result<(StatusCode, Json<Todo>), Problem> {
    if new.text.trim().is_empty() {
        let detail = "The text of a todo must not be empty.";
        return Err(Problem::new(StatusCode::UNPROCESSABLE_ENTITY, "empty-text", detail));
    }
    let todo = todos.with(|table| {
        table.last_id += 1;
        let id = table.last_id;
        let todo = Todo { id, text: new.text, done: false };
        table.all.insert(id, todo.clone());
        todo
    });
    Ok((StatusCode::CREATED, Json(todo)))
}

async fn change(
    Path(id): Path<u64>,
    todos: StateRef<Todos>,
    Json(change): Json<Change>,
) -> Result<Json<Todo>, Problem> {
    todos.with(|table| {
        let todo = table.all.get_mut(&id).ok_or_else(|| unknown(id))?;
        if let Some(text) = change.text {
            todo.text = text;
        }
        if let Some(done) = change.done {
            todo.done = done;
        }
        Ok(Json(todo.clone()))
    })
}

async fn remove(Path(id): Path<u64>, todos: StateRef<Todos>) -> Result<StatusCode, Problem> {
    let removed = todos.with(|table| table.all.remove(&id));
    removed.map(|_| StatusCode::NO_CONTENT).ok_or_else(|| unknown(id))
}

fn app(todos: Todos) -> App {
    App::new()
        .get("/todos", list)
        .post("/todos", create)
        .patch("/todos/{id}", change)
        .delete("/todos/{id}", remove)
        .state(todos)
}

const ABOUT: &str = "\
A small JSON service with typed paths, queries and bodies.

Try: curl -d '{\"text\":\"fly\"}' -H 'content-type: application/json' localhost:8080/todos";

fn main() -> peregrine::Result<()> {
    let address = peregrine_examples::address(ABOUT);
    let todos = Todos::default();
    Server::bind(address).serve(move || app(todos.clone()))
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;
    use std::cell::RefCell;
    use std::collections::BTreeSet;
    use std::rc::Rc;

    #[test]
    fn a_todo_lives_from_creation_to_deletion() {
        let client = app(Todos::default()).test();
        let made = client.post("/todos").json(&json!({"text": "fly"})).send_blocking();
        assert_eq!(made.status(), 201);
        assert_eq!(made.json::<Todo>(), Todo { id: 1, text: "fly".to_owned(), done: false });
        let changed = client.patch("/todos/1").json(&json!({"done": true})).send_blocking();
        assert!(changed.json::<Todo>().done);
        assert_eq!(client.get("/todos?limit=5").send_blocking().json::<Vec<Todo>>().len(), 1);
        assert_eq!(client.delete("/todos/1").send_blocking().status(), 204);
        assert_eq!(client.delete("/todos/1").send_blocking().status(), 404);
    }

    /// A client that still displays a deleted todo must not change a newer one with the same id.
    #[test]
    fn an_id_is_never_given_to_another_todo() {
        peregrine_simulate::seeds(0..50, async |sim| {
            let todos = Todos::default();
            let server = sim.serve(move || app(todos.clone()));
            let known = Rc::new(RefCell::new(BTreeSet::new()));
            let mut clients = Vec::new();
            for _ in 0..4 {
                let (sim, client, known) = (sim.clone(), server.client(), Rc::clone(&known));
                clients.push(sim.clone().spawn(async move {
                    for _ in 0..6 {
                        let made = client.post("/todos").json(&json!({"text": "fly"})).send().await;
                        let id = made.expect("the network loses nothing").json::<Todo>().id;
                        assert!(known.borrow_mut().insert(id), "the id {id} was used before");
                        if sim.random_below(2) == 0 {
                            let deleted = client.delete(&format!("/todos/{id}")).send().await;
                            deleted.expect("the network loses nothing").assert_status(204);
                        }
                    }
                }));
            }
            for client in clients {
                client.await;
            }
        });
    }

    #[test]
    fn errors_in_a_request_are_reported() {
        let client = app(Todos::default()).test();
        let empty = client.post("/todos").json(&json!({"text": " "})).send_blocking();
        assert_eq!(empty.status(), 422);
        let missing = client.post("/todos").json(&json!({})).send_blocking();
        assert!(missing.text().contains("text"), "{}", missing.text());
        let not_a_number = client.delete("/todos/first").send_blocking();
        assert_eq!(not_a_number.status(), 400);
        assert!(not_a_number.text().contains("first"), "{}", not_a_number.text());
    }
}
