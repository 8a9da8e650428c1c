//! Passwords hashed with Argon2, off the worker threads, with a limit on concurrent hashes.

use crate::errors::{Error, internal};
use argon2::password_hash::{Error as HashError, PasswordHash, SaltString};
use argon2::{Argon2, PasswordHasher, PasswordVerifier};
use peregrine::prelude::*;
use std::sync::Arc;
use std::thread::available_parallelism;
use std::time::Duration;
use tokio::sync::Semaphore;
use tokio::time::timeout;

/// Creates and verifies hashes. All workers share it.
#[derive(Clone)]
pub(crate) struct Passwords {
    turns: Arc<Semaphore>,
    /// How long a request waits for a permit to hash.
    wait_max: Duration,
    /// The hash that a password is checked against if the user does not exist, so that the response
    /// time does not reveal which users exist.
    nobody: Arc<str>,
}

impl Passwords {
    /// Each hash takes 19 MiB and a core for some 20 ms, so at most half of the cores hash.
    pub(crate) fn new(wait_max: Duration) -> Result<Self, HashError> {
        let turns = available_parallelism().map_or(1, |cores| cores.get().div_ceil(2));
        let nobody = hashed("not a user's password")?.into();
        Ok(Self { turns: Arc::new(Semaphore::new(turns)), wait_max, nobody })
    }

    pub(crate) async fn hash(&self, password: String) -> Result<String, Error> {
        let hash = self.work(move || hashed(&password)).await?;
        hash.map_err(|error| internal("a password could not be hashed", &error))
    }

    /// Checks a password against a hash; `None` stands for an unknown user.
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

    /// Runs expensive work on another thread, after waiting for a permit.
    async fn work<R: Send + 'static>(
        &self,
        work: impl FnOnce() -> R + Send + 'static,
    ) -> Result<R, Problem> {
        let turn = timeout(self.wait_max, Arc::clone(&self.turns).acquire_owned()).await;
        let Ok(Ok(turn)) = turn else { return Err(Problem::overloaded(1)) };
        let result = peregrine::spawn_blocking(move || {
            // The permit is held until the work ends, even if the request was cancelled.
            let _turn = turn;
            work()
        });
        Ok(result.await)
    }
}

/// Argon2id with the minimum that OWASP recommends. The text contains salt and parameters, so later
/// hashes can use stronger parameters.
fn hashed(password: &str) -> Result<String, HashError> {
    let mut salt = [0; 16];
    getrandom::fill(&mut salt).map_err(|_| HashError::Crypto)?;
    let salt = SaltString::encode_b64(&salt)?;
    Ok(Argon2::default().hash_password(password.as_bytes(), &salt)?.to_string())
}
