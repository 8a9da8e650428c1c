//! Live updates: the subscribers of each stream of events, and how events are sent to them.
//!
//! The subscribers belong to one process. An application of several processes would also have to
//! forward events between them, for example through Redis.

use crate::articles::{self, Summary};
use crate::comments::{self, Comment};
use crate::errors::Error;
use peregrine::openapi::{ApiScope, DescribeExt};
use peregrine::prelude::*;
use peregrine::web::sse::Sender;
use sqlx::SqlitePool;
use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

/// The maximum number of subscribers of all streams together.
const SUBSCRIBERS_MAX: usize = 10_000;
/// The maximum number of missed events that a reconnecting subscriber receives.
const MISSED_MAX: u32 = 100;
/// The number of further events that may be queued for a subscriber. A subscriber that is too slow
/// is disconnected, and receives the rest after it reconnects.
const QUEUED_MAX: usize = 64;

/// A stream of events.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) enum Topic {
    /// New articles.
    Articles,
    /// New comments of an article.
    Comments(i64),
}

/// The subscribers by topic. All workers share it.
#[derive(Clone, Default)]
pub(crate) struct Live(Arc<Mutex<HashMap<Topic, Vec<Sender>>>>);

impl Live {
    fn lock(&self) -> MutexGuard<'_, HashMap<Topic, Vec<Sender>>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Sends an event to all subscribers of a topic. Never waits.
    pub(crate) fn publish(&self, topic: Topic, event: &Event) {
        let mut subscribers = self.lock();
        let Some(of_topic) = subscribers.get_mut(&topic) else { return };
        of_topic.retain(|subscriber| subscriber.try_send(event.clone()).is_ok());
        if of_topic.is_empty() {
            subscribers.remove(&topic);
        }
    }

    /// Adds a subscriber, or fails with a 503 if there are too many.
    fn subscribe(&self, topic: Topic) -> Result<(Sender, Sse), Problem> {
        let (sender, sse) = sse::channel_with_capacity(MISSED_MAX as usize + QUEUED_MAX);
        let mut subscribers = self.lock();
        if subscribers.values().map(Vec::len).sum::<usize>() >= SUBSCRIBERS_MAX {
            // Disconnected subscribers are removed only here and when an event is sent to them.
            subscribers.retain(|_, of_topic| {
                of_topic.retain(|subscriber| !subscriber.is_closed());
                !of_topic.is_empty()
            });
            if subscribers.values().map(Vec::len).sum::<usize>() >= SUBSCRIBERS_MAX {
                return Err(Problem::overloaded(30));
            }
        }
        subscribers.entry(topic).or_default().push(sender.clone());
        // On shutdown, the last event makes clients reconnect after two seconds, to a new process.
        let goodbye =
            Event::default().event("end").data("come again").retry(Duration::from_secs(2));
        Ok((sender, sse.final_event(goodbye)))
    }

    pub(crate) fn publish_article(&self, id: i64, article: &Summary) {
        self.publish(Topic::Articles, &of_article(id, article));
    }

    pub(crate) fn publish_comment(&self, article_id: i64, comment: &Comment) {
        self.publish(Topic::Comments(article_id), &of_comment(comment));
    }
}

fn of_article(id: i64, article: &Summary) -> Event {
    Event::default().event("article").id(id).json_data(article)
}

fn of_comment(comment: &Comment) -> Event {
    Event::default().event("comment").id(comment.id).json_data(comment)
}

pub(crate) fn routes(api: ApiScope) -> ApiScope {
    const AGAIN: &str = "A client that reconnects with `Last-Event-ID` receives the events it missed, at most 100. An event may \
                         arrive twice: compare ids.";
    let articles = articles_live
        .named("live_articles")
        .describe(|it| it.summary("New articles").description(AGAIN));
    let comments = comments_live.named("live_comments").describe(|it| {
        it.summary("New comments of an article")
            .description(AGAIN)
            .problem(404, "There is no such article.")
    });
    api.tag("live").get("/articles", articles).get("/articles/{slug}/comments", comments)
}

/// Queries the missed events after adding the subscriber, so that no event is lost in between. An
/// event that is published meanwhile may arrive twice.
async fn articles_live(
    live: StateRef<Live>,
    pool: StateRef<SqlitePool>,
    last: Option<LastEventId<i64>>,
) -> Result<Sse, Error> {
    let (sender, sse) = live.subscribe(Topic::Articles)?;
    if let Some(LastEventId(last)) = last {
        for (id, article) in articles::newer_than(&pool, last, MISSED_MAX).await? {
            let _ = sender.try_send(of_article(id, &article));
        }
    }
    Ok(sse)
}

async fn comments_live(
    live: StateRef<Live>,
    pool: StateRef<SqlitePool>,
    Path(slug): Path<String>,
    last: Option<LastEventId<i64>>,
) -> Result<Sse, Error> {
    let article_id = articles::id_of(&pool, &slug).await?;
    let (sender, sse) = live.subscribe(Topic::Comments(article_id))?;
    if let Some(LastEventId(last)) = last {
        for comment in comments::newer_than(&pool, article_id, last, MISSED_MAX).await? {
            let _ = sender.try_send(of_comment(&comment));
        }
    }
    Ok(sse)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn subscribers_are_limited_and_disconnected_ones_do_not_count() {
        let live = Live::default();
        let topic = |number: usize| Topic::Comments(number as i64 % 10);
        let subscribers: Vec<_> = (0..SUBSCRIBERS_MAX)
            .map(|number| live.subscribe(topic(number)).expect("not full"))
            .collect();
        let refused = live.subscribe(Topic::Articles).expect_err("full");
        assert_eq!(refused.status, 503);
        drop(subscribers);
        assert!(live.subscribe(Topic::Articles).is_ok());
        assert_eq!(live.lock().len(), 1);
    }
}
