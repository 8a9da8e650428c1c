//! HTTP/1 through the public types: table cases, split input, an oracle, and responses that are
//! parsed back.

mod built;
mod cases;
mod cut;
mod oracle;
mod play;
mod reader;
mod reread;
mod responses;
