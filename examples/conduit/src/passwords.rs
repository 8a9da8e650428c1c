//! Passwords: hashed by argon2, off the workers' threads, and not more at a time than the machine can bear.

use crate::errors::{Error, internal};
use argon2::password_hash::{Error as HashError, PasswordHash, SaltString};
use argon2::{Argon2, PasswordHasher, PasswordVerifier};
use peregrine::prelude::*;
use std::sync::Arc;
use std::thread::available_parallelism;
use std::time::Duration;
use tokio::sync::Semaphore;
use tokio::time::timeout;

/// Makes and checks hashes. All workers share it.
#[derive(Clone)]
pub(crate) struct Passwords {
    turns: Arc<Semaphore>,
    /// How long a request waits for its turn.
    wait_max: Duration,
    /// What passwords of users are compared with that nobody is, so that the time of an answer does not tell who is one.
    nobody: Arc<str>,
}

impl Passwords {
    /// Each hash takes 19 MiB and a core for some 20 ms: half of the cores are for something else.
    pub(crate) fn new(wait_max: Duration) -> Result<Self, HashError> {
        let turns = available_parallelism().map_or(1, |cores| cores.get().div_ceil(2));
        let nobody = hashed("nobody has this one")?.into();
        Ok(Self { turns: Arc::new(Semaphore::new(turns)), wait_max, nobody })
    }

    pub(crate) async fn hash(&self, password: String) -> Result<String, Error> {
        let hash = self.work(move || hashed(&password)).await?;
        hash.map_err(|error| internal("a password could not be hashed", &error))
    }

    /// Is it the password? `None` stands for the hash of somebody who is unknown.
    pub(crate) async fn is_right(
        &self,
        password: String,
        hash: Option<String>,
    ) -> Result<bool, Error> {
        let is_known = hash.is_some();
        let hash = hash.unwrap_or_else(|| self.nobody.to_string());
        let is_right = move || {
            let hash = PasswordHash::new(&hash);
            hash.is_ok_and(|hash| {
                Argon2::default().verify_password(password.as_bytes(), &hash).is_ok()
            })
        };
        Ok(self.work(is_right).await? && is_known)
    }

    /// Runs what costs much, when it is its turn.
    async fn work<R: Send + 'static>(
        &self,
        work: impl FnOnce() -> R + Send + 'static,
    ) -> Result<R, Problem> {
        let turn = timeout(self.wait_max, Arc::clone(&self.turns).acquire_owned()).await;
        let Ok(Ok(turn)) = turn else { return Err(Problem::overloaded(1)) };
        let result = peregrine::offload(move || {
            // The turn is over when the work is, also when nobody waits for it any more.
            let _turn = turn;
            work()
        });
        Ok(result.await)
    }
}

/// Argon2id with the least that OWASP recommends. The text has salt and parameters in it, so that later ones can cost more.
fn hashed(password: &str) -> Result<String, HashError> {
    let mut salt = [0; 16];
    getrandom::fill(&mut salt).map_err(|_| HashError::Crypto)?;
    let salt = SaltString::encode_b64(&salt)?;
    Ok(Argon2::default().hash_password(password.as_bytes(), &salt)?.to_string())
}
