//! Passwords hashed with Argon2, off the worker thread, with a limit on concurrent hashes.
#![forbid(unsafe_code)]

use argon2::password_hash::{Error as HashError, PasswordHash, SaltString};
use argon2::{Argon2, Params, PasswordHasher, PasswordVerifier, Version};
use peregrine::prelude::*;
use peregrine::rate_limit::RateLimit;
use peregrine::session::{Session, SessionManager};
use serde::Deserialize;
use std::collections::HashMap;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;
use tokio::sync::Semaphore;
use tokio::time::timeout;
use tower_sessions_memory_store::MemoryStore;

#[global_allocator]
static ALLOCATOR: mimalloc::MiMalloc = mimalloc::MiMalloc;

/// The number of concurrent hashes of all workers. Each takes 19 MiB and a core for some 20 ms.
const AT_A_TIME: usize = 2;
/// How long a request waits for a permit to hash.
const WAIT: Duration = Duration::from_secs(2);
/// A longer password is not safer and takes longer to hash.
const PASSWORD_BYTES_MAX: usize = 256;

/// The users and their hashes. A real program keeps the hashes in a database.
struct Accounts {
    hashes: Mutex<HashMap<String, String>>,
    turns: Arc<Semaphore>,
    /// The hash that a password is checked against if the user does not exist, so that the response
    /// time does not reveal which names exist.
    nobody: String,
}

impl Accounts {
    fn new() -> Self {
        let nobody = hashed("not a user's password").unwrap_or_default();
        Self { hashes: Mutex::default(), turns: Arc::new(Semaphore::new(AT_A_TIME)), nobody }
    }

    /// Runs expensive work on another thread, after waiting for a permit.
    async fn work<R: Send + 'static>(
        &self,
        work: impl FnOnce() -> R + Send + 'static,
    ) -> Result<R, Problem> {
        let turn = timeout(WAIT, Arc::clone(&self.turns).acquire_owned()).await;
        let Ok(Ok(turn)) = turn else { return Err(Problem::overloaded(1)) };
        let result = peregrine::spawn_blocking(move || {
            // The permit is held until the work ends, even if the request was cancelled.
            let _turn = turn;
            work()
        });
        Ok(result.await)
    }

    /// Adds an account; returns `false` if the name is taken.
    fn add(&self, name: String, hash: String) -> bool {
        let mut hashes = self.hashes.lock().unwrap_or_else(PoisonError::into_inner);
        let is_new = !hashes.contains_key(&name);
        if is_new {
            hashes.insert(name, hash);
        }
        is_new
    }

    /// Replaces the hash of an account with a stronger one, unless the password has changed.
    fn replace(&self, name: &str, old: &str, new: String) {
        let mut hashes = self.hashes.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(hash) = hashes.get_mut(name).filter(|hash| *hash == old) {
            *hash = new;
        }
    }

    fn hash_of(&self, name: &str) -> Option<String> {
        self.hashes.lock().unwrap_or_else(PoisonError::into_inner).get(name).cloned()
    }
}

/// Argon2id with the minimum that OWASP recommends: 19 MiB, two passes. The hash contains its salt
/// and parameters, so the parameters can be raised later: a login replaces a weaker hash.
fn hashed(password: &str) -> Result<String, HashError> {
    let mut salt = [0; 16];
    getrandom::fill(&mut salt).map_err(|_| HashError::Crypto)?;
    let salt = SaltString::encode_b64(&salt)?;
    Ok(Argon2::default().hash_password(password.as_bytes(), &salt)?.to_string())
}

/// Checks a password against a hash, in constant time with respect to the password. If the password
/// is right and the hash is weaker than today's parameters, also returns a new hash.
fn check(password: &str, hash: &str) -> (bool, Option<String>) {
    let Ok(hash) = PasswordHash::new(hash) else { return (false, None) };
    let is_right = Argon2::default().verify_password(password.as_bytes(), &hash).is_ok();
    let is_old = is_right && is_weaker(&hash);
    (is_right, if is_old { hashed(password).ok() } else { None })
}

/// Whether a hash with today's parameters would be more expensive to crack.
fn is_weaker(hash: &PasswordHash<'_>) -> bool {
    let today = Argon2::default();
    let today = today.params();
    let is_of_today = hash.algorithm == argon2::ARGON2ID_IDENT
        && hash.version == Some(Version::default().into())
        && Params::try_from(hash)
            .is_ok_and(|own| own.m_cost() >= today.m_cost() && own.t_cost() >= today.t_cost());
    !is_of_today
}

#[derive(Deserialize)]
struct Account {
    name: String,
    password: String,
}

impl Account {
    fn check(&self) -> Result<(), Problem> {
        let is_sound = (1..=64).contains(&self.name.len())
            && (10..=PASSWORD_BYTES_MAX).contains(&self.password.len());
        let detail = "The name needs 1 to 64 bytes, and the password 10 to 256.";
        let problem = || Problem::new(StatusCode::UNPROCESSABLE_ENTITY, "account-invalid", detail);
        is_sound.then_some(()).ok_or_else(problem)
    }
}

async fn register(
    accounts: StateRef<Arc<Accounts>>,
    Form(account): Form<Account>,
) -> Result<StatusCode, Problem> {
    account.check()?;
    let Account { name, password } = account;
    let hash = accounts.work(move || hashed(&password)).await?;
    let failed = |_| {
        let detail = "The server could not hash the password.";
        Problem::new(StatusCode::INTERNAL_SERVER_ERROR, "hash-failed", detail)
    };
    if accounts.add(name, hash.map_err(failed)?) {
        return Ok(StatusCode::CREATED);
    }
    Err(Problem::new(StatusCode::CONFLICT, "name-taken", "Choose another name."))
}

async fn login(
    accounts: StateRef<Arc<Accounts>>,
    guesses: StateRef<RateLimit>,
    session: Session,
    Form(account): Form<Account>,
) -> Result<StatusCode, Problem> {
    let wrong = || {
        let detail = "The name or the password is wrong.";
        Problem::new(StatusCode::FORBIDDEN, "login-failed", detail)
    };
    account.check().map_err(|_| wrong())?;
    // Before the expensive work. The limit per account also stops guessing from many addresses.
    guesses.check_key(&account.name).await?;
    let Account { name, password } = account;
    let hash = accounts.hash_of(&name);
    let is_known = hash.is_some();
    let hash = hash.unwrap_or_else(|| accounts.nobody.clone());
    let old = hash.clone();
    let (is_right, new) = accounts.work(move || check(&password, &hash)).await?;
    if !(is_known && is_right) {
        return Err(wrong());
    }
    if let Some(new) = new {
        accounts.replace(&name, &old, new);
    }
    session.regenerate();
    session.insert("user", name)?;
    Ok(StatusCode::NO_CONTENT)
}

fn me(session: Session) -> Result<String, Problem> {
    let nobody = || Problem::new(StatusCode::FORBIDDEN, "logged-out", "Log in first.");
    session.get::<String>("user").ok_or_else(nobody)
}

/// The state that all workers share.
#[derive(Clone)]
struct Shared {
    accounts: Arc<Accounts>,
    sessions: MemoryStore,
    by_address: RateLimit,
    guesses: RateLimit,
}

impl Shared {
    fn new() -> Self {
        Self {
            accounts: Arc::new(Accounts::new()),
            sessions: MemoryStore::default(),
            by_address: RateLimit::per_second(1).burst(20),
            guesses: RateLimit::per_hour(10).name("guesses"),
        }
    }

    fn app(&self) -> App {
        App::new()
            .state(Arc::clone(&self.accounts))
            .state(self.guesses.clone())
            .wrap(SessionManager::new(self.sessions.clone()))
            .get("/me", me)
            .wrap(self.by_address.clone())
            // A request that waits for a permit holds memory, so their number is limited.
            .post("/register", register.requests_max(64))
            .post("/login", login.requests_max(64))
    }
}

const ABOUT: &str = "\
Passwords hashed with Argon2, off the worker thread.

Try: curl -d 'name=ali&password=open+sesame' http://127.0.0.1:8080/register
     curl -d 'name=ali&password=open+sesame' -c jar http://127.0.0.1:8080/login
     curl -b jar http://127.0.0.1:8080/me";

fn main() -> peregrine::Result<()> {
    let address = peregrine_examples::address(ABOUT);
    let shared = Shared::new();
    Server::bind(address).serve(move || shared.app())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn who_knows_the_password_is_in_and_nobody_guesses_for_long() {
        let client = Shared::new().app().test();
        let send = async |path: &str, name: &str, password: &str| {
            let form = client.post(path).form(&[("name", name), ("password", password)]);
            form.send().await
        };
        assert_eq!(send("/register", "ali", "open sesame").await.status(), 201);
        assert_eq!(send("/register", "ali", "another one").await.status(), 409);
        assert_eq!(send("/register", "eve", "short").await.status(), 422);
        assert_eq!(send("/login", "ali", "open barley").await.status(), 403);
        assert_eq!(send("/login", "nobody", "open sesame").await.status(), 403);
        let response = send("/login", "ali", "open sesame").await;
        assert_eq!(response.status(), 204);
        let cookie = response.header("set-cookie").expect("a session").split(';').next();
        let me = client.get("/me").header("cookie", cookie.expect("a pair")).send().await;
        assert_eq!(me.text(), "ali");
        let mut last = 0;
        for _ in 0..9 {
            last = send("/login", "ali", "open barley").await.status().as_u16();
        }
        assert_eq!(last, 429);
    }

    #[tokio::test]
    async fn a_login_makes_a_better_hash_of_a_weak_one() {
        let shared = Shared::new();
        let salt = SaltString::encode_b64(&[7; 16]).expect("a salt");
        let weak = Argon2::new(
            argon2::Algorithm::Argon2id,
            Version::default(),
            Params::new(8, 1, 1, None).expect("the lowest valid values"),
        );
        let weak = weak.hash_password(b"open sesame", &salt).expect("a hash").to_string();
        assert!(shared.accounts.add("ali".to_owned(), weak.clone()));
        let client = shared.app().test();
        let login = async |password: &str| {
            let form = client.post("/login").form(&[("name", "ali"), ("password", password)]);
            form.send().await.status().as_u16()
        };
        let hash = || shared.accounts.hash_of("ali").expect("an account");
        assert_eq!((login("open barley").await, hash()), (403, weak.clone()));
        assert_eq!(login("open sesame").await, 204);
        let strong = hash();
        assert!(!is_weaker(&PasswordHash::new(&strong).expect("a hash")), "{strong}");
        assert_eq!((login("open sesame").await, hash()), (204, strong), "the hash stays");
        shared.accounts.replace("ali", &weak, "of another password".to_owned());
        assert_eq!(login("open sesame").await, 204, "a hash that has changed is kept");
    }

    #[tokio::test]
    async fn not_more_hashes_are_made_at_a_time_than_there_may_be() {
        use std::sync::atomic::{AtomicUsize, Ordering::SeqCst};
        let (accounts, now, most) =
            (Accounts::new(), Arc::new(AtomicUsize::new(0)), Arc::new(AtomicUsize::new(0)));
        let work = || {
            let (now, most) = (Arc::clone(&now), Arc::clone(&most));
            accounts.work(move || {
                most.fetch_max(now.fetch_add(1, SeqCst) + 1, SeqCst);
                std::thread::sleep(Duration::from_millis(5));
                now.fetch_sub(1, SeqCst);
            })
        };
        let (a, b, c, d, e, f) = tokio::join!(work(), work(), work(), work(), work(), work());
        assert!([a, b, c, d, e, f].iter().all(Result::is_ok));
        assert_eq!(most.load(SeqCst), AT_A_TIME);
    }
}
