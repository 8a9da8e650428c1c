//! The application from outside, by what the specification says: each endpoint in process, and the whole on sockets.

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
