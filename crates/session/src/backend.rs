//! Where sessions are stored.

use crate::clock::{now, seconds};
use crate::session::STARTED_AT;
use peregrine_web::cookies::CookieKeys;
use serde::{Deserialize, Serialize};
use serde_json::Value;
use std::collections::HashMap;
use std::sync::Arc;
use time::{Duration, OffsetDateTime};
use tower_sessions_core::session::{Id, Record};
use tower_sessions_core::{SessionStore, session_store};

pub(crate) type Data = HashMap<String, Value>;

/// Where sessions are stored.
#[derive(Clone, Debug)]
pub(crate) enum Backend {
    Store(Arc<dyn SessionStore>),
    /// In the cookie itself, encrypted.
    Cookie(CookieKeys),
}

/// The session loaded for a request.
#[derive(Clone, Debug, Default)]
pub(crate) struct LoadedSession {
    /// The ID, if there is a session.
    pub(crate) id: Option<Id>,
    /// When the session ends unless it is used again, if there is one.
    pub(crate) expiry: Option<OffsetDateTime>,
    /// Loading changed the session's expiry, so that it differs from that of its cookie.
    pub(crate) was_touched: bool,
    /// The request had a session cookie, valid or not.
    pub(crate) has_cookie: bool,
}

impl Backend {
    /// Loads the session that the cookie's value refers to, unless it is missing or has expired.
    pub(crate) async fn load(
        &self,
        name: &str,
        value: &str,
        absolute_timeout: Duration,
    ) -> session_store::Result<Option<Record>> {
        let record = match self {
            Self::Store(store) => match value.parse() {
                Ok(id) => store.load(&id).await?.filter(|record| record.id == id),
                Err(_) => None,
            },
            Self::Cookie(keys) => keys.open(name, value).and_then(|text| decode_payload(&text)),
        };
        Ok(record.filter(|record| {
            let now = now();
            let ends_at =
                started_at(&record.data).map(|started| started.saturating_add(absolute_timeout));
            record.expiry_date > now && ends_at.is_none_or(|ends_at| ends_at > now)
        }))
    }

    /// Saves a session that has no ID yet under a new, unpredictable one.
    pub(crate) async fn create(&self, record: &mut Record) -> session_store::Result<()> {
        match self {
            Self::Store(store) => store.create(record).await,
            Self::Cookie(_) => Ok(()),
        }
    }

    /// Saves a session that exists. A store saves it even if it was deleted meanwhile; check that
    /// with [`exists`](Self::exists).
    pub(crate) async fn save(&self, record: &Record) -> session_store::Result<()> {
        match self {
            Self::Store(store) => store.save(record).await,
            Self::Cookie(_) => Ok(()),
        }
    }

    /// Whether a loaded session still exists. One in a cookie always does until it expires.
    pub(crate) async fn exists(
        &self,
        id: Id,
        loaded: &LoadedSession,
    ) -> session_store::Result<bool> {
        let expiry = match self {
            Self::Store(store) => store.load(&id).await?.map(|record| record.expiry_date),
            Self::Cookie(_) => loaded.expiry,
        };
        Ok(expiry.is_some_and(|expiry| expiry > now()))
    }

    /// Returns the value of a session's cookie.
    pub(crate) fn cookie_value(
        &self,
        name: &str,
        record: &Record,
    ) -> session_store::Result<String> {
        match self {
            Self::Store(_) => Ok(record.id.to_string()),
            Self::Cookie(keys) => encrypt(keys, name, record),
        }
    }

    pub(crate) async fn delete(&self, id: Id) -> session_store::Result<()> {
        match self {
            Self::Store(store) => store.delete(&id).await,
            Self::Cookie(_) => Ok(()),
        }
    }
}

/// The content of a cookie: the expiry in whole seconds since 1970, and the values. It is compact
/// because every request contains it.
#[derive(Serialize, Deserialize)]
struct CookiePayload<D>(i64, D);

fn encrypt(keys: &CookieKeys, name: &str, record: &Record) -> session_store::Result<String> {
    let ends_at = seconds(record.expiry_date);
    let text = serde_json::to_string(&CookiePayload(ends_at, &record.data))
        .map_err(|error| session_store::Error::Encode(error.to_string()))?;
    Ok(keys.seal(name, &text))
}

fn decode_payload(text: &str) -> Option<Record> {
    let CookiePayload(expiry, data) = serde_json::from_str(text).ok()?;
    let expiry_date = OffsetDateTime::from_unix_timestamp(expiry).ok()?;
    // Without a store, the ID has no meaning.
    Some(Record { id: Id(0), data, expiry_date })
}

/// Returns when a session started. Sessions saved by other programs, such as `tower-sessions`
/// itself, do not record it.
pub(crate) fn started_at(data: &Data) -> Option<OffsetDateTime> {
    OffsetDateTime::from_unix_timestamp(data.get(STARTED_AT)?.as_i64()?).ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_cookie_does_not_end_before_its_session_does() {
        let keys = CookieKeys::new(&[1; 32]);
        let second = OffsetDateTime::UNIX_EPOCH + Duration::seconds(1_000_000_000);
        let round_trip = |expiry_date: OffsetDateTime| {
            let record = Record { id: Id(0), data: Data::new(), expiry_date };
            let value = encrypt(&keys, "id", &record).expect("the data is plain JSON");
            let text = keys.open("id", &value).expect("the same keys sealed it");
            decode_payload(&text).expect("`encrypt` wrote this format").expiry_date
        };
        for (nanoseconds, expected) in [(0, 0), (1, 1), (500_000_000, 1), (999_999_999, 1)] {
            let expiry = second + Duration::nanoseconds(nanoseconds);
            assert_eq!(round_trip(expiry), second + Duration::seconds(expected), "{nanoseconds}");
        }
        let never = second.saturating_add(Duration::MAX);
        assert_eq!(
            round_trip(never).unix_timestamp(),
            never.unix_timestamp(),
            "the expiry saturates"
        );
    }
}
