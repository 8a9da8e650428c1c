//! HTTP/1 through the public types: table cases, cuts, an oracle, and responses that are read back.

mod built;
mod cases;
mod cut;
mod oracle;
mod play;
mod reader;
mod reread;
mod responses;
