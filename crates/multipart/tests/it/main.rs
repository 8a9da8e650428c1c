//! The parser of forms, and forms in handlers.

mod forms;
mod parser;
