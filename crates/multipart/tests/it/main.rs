//! The form parser, and forms in handlers.

mod forms;
mod parser;
