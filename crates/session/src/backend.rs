//! Where sessions are kept.

use crate::clock::{now, seconds};
use crate::session::BEGUN;
use peregrine_web::cookies::CookieKeys;
use serde::{Deserialize, Serialize};
use serde_json::Value;
use std::collections::HashMap;
use std::sync::Arc;
use time::{Duration, OffsetDateTime};
use tower_sessions_core::session::{Id, Record};
use tower_sessions_core::{SessionStore, session_store};

pub(crate) type Data = HashMap<String, Value>;

/// Where sessions are kept.
#[derive(Clone, Debug)]
pub(crate) enum Backend {
    Store(Arc<dyn SessionStore>),
    /// In the cookie itself, encrypted.
    Cookie(CookieKeys),
}

/// What was found for a request.
#[derive(Clone, Debug, Default)]
pub(crate) struct Loaded {
    /// Of a session that is there.
    pub(crate) id: Option<Id>,
    /// Where there is one: when it ends unless it is used again.
    pub(crate) expiry: Option<OffsetDateTime>,
    /// Its use was written down when it was loaded, so that it ends later than its cookie says.
    pub(crate) is_prolonged: bool,
    /// The request had a cookie, whatever it was worth.
    pub(crate) has_cookie: bool,
}

impl Backend {
    /// The session that the cookie's value stands for, if it is there and still counts.
    pub(crate) async fn load(
        &self,
        name: &str,
        value: &str,
        absolute: Duration,
    ) -> session_store::Result<Option<Record>> {
        let record = match self {
            Self::Store(store) => match value.parse() {
                Ok(id) => store.load(&id).await?.filter(|record| record.id == id),
                Err(_) => None,
            },
            Self::Cookie(keys) => keys.open(name, value).and_then(|text| unsealed(&text)),
        };
        Ok(record.filter(|record| {
            let now = now();
            let ends_at = begun(&record.data).map(|begun| begun.saturating_add(absolute));
            record.expiry_date > now && ends_at.is_none_or(|ends_at| ends_at > now)
        }))
    }

    /// Keeps a session that has no id yet, under one that nobody knows.
    pub(crate) async fn create(&self, record: &mut Record) -> session_store::Result<()> {
        match self {
            Self::Store(store) => store.create(record).await,
            Self::Cookie(_) => Ok(()),
        }
    }

    /// Keeps a session that is there. Stores keep whatever they are given: [`is_there`](Self::is_there) tells whether it has ended meanwhile.
    pub(crate) async fn save(&self, record: &Record) -> session_store::Result<()> {
        match self {
            Self::Store(store) => store.save(record).await,
            Self::Cookie(_) => Ok(()),
        }
    }

    /// Is the session that was loaded still there? One in a cookie is, wherever that has gone, until it ends.
    pub(crate) async fn is_there(&self, id: Id, loaded: &Loaded) -> session_store::Result<bool> {
        let expiry = match self {
            Self::Store(store) => store.load(&id).await?.map(|record| record.expiry_date),
            Self::Cookie(_) => loaded.expiry,
        };
        Ok(expiry.is_some_and(|expiry| expiry > now()))
    }

    /// What the cookie of a session has in it.
    pub(crate) fn value(&self, name: &str, record: &Record) -> session_store::Result<String> {
        match self {
            Self::Store(_) => Ok(record.id.to_string()),
            Self::Cookie(keys) => sealed(keys, name, record),
        }
    }

    pub(crate) async fn delete(&self, id: Id) -> session_store::Result<()> {
        match self {
            Self::Store(store) => store.delete(&id).await,
            Self::Cookie(_) => Ok(()),
        }
    }
}

/// What a cookie has in it: when it ends, in whole seconds since 1970, and the values. It comes with every request, and is as short as can be.
#[derive(Serialize, Deserialize)]
struct Kept<D>(i64, D);

fn sealed(keys: &CookieKeys, name: &str, record: &Record) -> session_store::Result<String> {
    let ends_at = seconds(record.expiry_date);
    let text = serde_json::to_string(&Kept(ends_at, &record.data))
        .map_err(|error| session_store::Error::Encode(error.to_string()))?;
    Ok(keys.seal(name, &text))
}

fn unsealed(text: &str) -> Option<Record> {
    let Kept(expiry, data) = serde_json::from_str(text).ok()?;
    let expiry_date = OffsetDateTime::from_unix_timestamp(expiry).ok()?;
    // There is no store in which an id would find anything.
    Some(Record { id: Id(0), data, expiry_date })
}

/// When a session began. One of another program's, as `tower-sessions` itself, does not say.
pub(crate) fn begun(data: &Data) -> Option<OffsetDateTime> {
    OffsetDateTime::from_unix_timestamp(data.get(BEGUN)?.as_i64()?).ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_cookie_does_not_end_before_its_session_does() {
        let keys = CookieKeys::new(&[1; 32]);
        let second = OffsetDateTime::UNIX_EPOCH + Duration::seconds(1_000_000_000);
        let back = |expiry_date: OffsetDateTime| {
            let record = Record { id: Id(0), data: Data::new(), expiry_date };
            let value = sealed(&keys, "id", &record).expect("it is plain data");
            let text = keys.open("id", &value).expect("it was sealed so");
            unsealed(&text).expect("it was written so").expiry_date
        };
        for (nanoseconds, kept) in [(0, 0), (1, 1), (500_000_000, 1), (999_999_999, 1)] {
            let expiry = second + Duration::nanoseconds(nanoseconds);
            assert_eq!(back(expiry), second + Duration::seconds(kept), "{nanoseconds}");
        }
        let never = second.saturating_add(Duration::MAX);
        assert_eq!(back(never).unix_timestamp(), never.unix_timestamp(), "without an end");
    }
}
