//! A request is found, called and answered without a heap allocation.

use peregrine_proto::Limits;
use peregrine_proto::h1::{Connection, Event};
use peregrine_slot::FutureSlot;
use peregrine_web::connection::ConnectionInfo;
use peregrine_web::middleware::{Middleware, Next};
use peregrine_web::{App, Application, Body, Head, Request, Response, Service};
use std::alloc::{GlobalAlloc, Layout, System};
use std::cell::Cell;
use std::pin::Pin;
use std::rc::Rc;
use std::task::{Context, Poll, Waker};
