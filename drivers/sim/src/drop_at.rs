//! Drops a future at one of its awaits.

use std::future::Future;
use std::pin::Pin;
use std::task::{Context, Poll};

use crate::network::Network;

/// Polls a future until it completes or is randomly dropped. Created by [`Network::drop_at`].
pub struct DropAt<F> {
    network: Network,
    per_mille: u32,
    state: DropState<F>,
}

enum DropState<F> {
    New(Pin<Box<F>>),
    Started(Pin<Box<F>>),
    Done,
}

impl<F> DropAt<F> {
    pub(crate) fn new(network: Network, per_mille: u32, future: F) -> Self {
        Self { network, per_mille, state: DropState::New(Box::pin(future)) }
    }
}

impl<F: Future> Future for DropAt<F> {
    /// `None` if the future was dropped.
    type Output = Option<F::Output>;

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        let per_mille = self.per_mille;
        let should_drop = |network: &Network| network.with(|state| state.random.chance(per_mille));
        let mut future = match std::mem::replace(&mut self.state, DropState::Done) {
            DropState::New(_) if should_drop(&self.network) => return Poll::Ready(None),
            DropState::New(future) | DropState::Started(future) => future,
            DropState::Done => panic!("a completed future was polled again"),
        };
        match future.as_mut().poll(cx) {
            Poll::Ready(output) => Poll::Ready(Some(output)),
            Poll::Pending if should_drop(&self.network) => Poll::Ready(None),
            Poll::Pending => {
                self.state = DropState::Started(future);
                Poll::Pending
            }
        }
    }
}
