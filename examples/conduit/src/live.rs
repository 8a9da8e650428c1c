//! Live updates: who reads which stream of events, and who tells them.
//!
//! Readers are of one process. Several processes would tell each other, by Redis say, and each its readers.

use crate::articles::{self, Summary};
use crate::comments::{self, Comment};
use crate::errors::Error;
use peregrine::openapi::{Api, DescribeExt};
use peregrine::prelude::*;
use peregrine::web::sse::Sender;
use sqlx::SqlitePool;
use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

/// How many readers there may be, of all streams together.
const READERS_MAX: usize = 10_000;
/// How much a reader that comes again gets of what it missed.
const MISSED_MAX: u32 = 100;
/// What waits for a reader beside that. One that is slower is let go, and comes again for the rest.
const WAITING_MAX: usize = 64;

/// What somebody may read about.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) enum Topic {
    /// New articles.
    Articles,
    /// New comments of an article.
    Comments(i64),
}

/// The readers. All workers share it.
#[derive(Clone, Default)]
pub(crate) struct Live(Arc<Mutex<HashMap<Topic, Vec<Sender>>>>);

impl Live {
    fn lock(&self) -> MutexGuard<'_, HashMap<Topic, Vec<Sender>>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Tells everybody who reads about it. It never waits.
    pub(crate) fn tell(&self, topic: Topic, event: &Event) {
        let mut readers = self.lock();
        let Some(of_topic) = readers.get_mut(&topic) else { return };
        of_topic.retain(|reader| reader.try_send(event.clone()).is_ok());
        if of_topic.is_empty() {
            readers.remove(&topic);
        }
    }

    /// Adds a reader.
    fn join(&self, topic: Topic) -> Result<(Sender, Sse), Problem> {
        let (sender, sse) = sse::channel_of(MISSED_MAX as usize + WAITING_MAX);
        let mut readers = self.lock();
        if readers.values().map(Vec::len).sum::<usize>() >= READERS_MAX {
            // Readers that left are only found when something is told to them, or here.
            readers.retain(|_, of_topic| {
                of_topic.retain(|reader| !reader.is_closed());
                !of_topic.is_empty()
            });
            if readers.values().map(Vec::len).sum::<usize>() >= READERS_MAX {
                return Err(Problem::overloaded(30));
            }
        }
        readers.entry(topic).or_default().push(sender.clone());
        // At the end of the server readers come again, to its successor, and not all at once.
        let goodbye =
            Event::default().event("end").data("come again").retry(Duration::from_secs(2));
        Ok((sender, sse.goodbye(goodbye)))
    }

    pub(crate) fn tell_article(&self, id: i64, article: &Summary) {
        self.tell(Topic::Articles, &of_article(id, article));
    }

    pub(crate) fn tell_comment(&self, article_id: i64, comment: &Comment) {
        self.tell(Topic::Comments(article_id), &of_comment(comment));
    }
}

fn of_article(id: i64, article: &Summary) -> Event {
    Event::default().event("article").id(id).json_data(article)
}

fn of_comment(comment: &Comment) -> Event {
    Event::default().event("comment").id(comment.id).json_data(comment)
}

pub(crate) fn routes(api: Api) -> Api {
    const AGAIN: &str = "A reader that comes again with `Last-Event-ID` gets what it missed, 100 events at most. An event may \
                         come twice: readers go by its id.";
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

/// What was missed is asked for after the reader has joined, so that nothing is lost between; what comes meanwhile may be in both.
async fn articles_live(
    live: StateRef<Live>,
    pool: StateRef<SqlitePool>,
    last: Option<LastEventId<i64>>,
) -> Result<Sse, Error> {
    let (sender, sse) = live.join(Topic::Articles)?;
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
    let (sender, sse) = live.join(Topic::Comments(article_id))?;
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
    fn there_are_not_more_readers_than_there_may_be_and_those_that_left_do_not_count() {
        let live = Live::default();
        let topic = |number: usize| Topic::Comments(number as i64 % 10);
        let readers: Vec<_> =
            (0..READERS_MAX).map(|number| live.join(topic(number)).expect("a place")).collect();
        let refused = live.join(Topic::Articles).expect_err("all places are taken");
        assert_eq!(refused.status, 503);
        drop(readers);
        assert!(live.join(Topic::Articles).is_ok());
        assert_eq!(live.lock().len(), 1);
    }
}
