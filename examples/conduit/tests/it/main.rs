//! Tests of the application through its public API, as specified: each endpoint in process, and the
//! whole program over sockets.

mod articles;
mod attacks;
mod comments;
mod document;
mod guide;
mod harness;
mod live;
mod pages;
mod profiles;
mod program;
mod served;
mod uploads;
mod users;
