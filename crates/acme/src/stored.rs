//! What is kept, by which keys and in which form. What is not whole is not there.

use crate::book::Present;
use crate::guarded::{Guarded, Lock};
use peregrine_tls::{Inspected, TlsError, inspect};
use serde::{Deserialize, Serialize};
use std::io;
use std::time::{Duration, SystemTime};

/// A storage, as far as it concerns one directory: certificates of one authority are not those of another.
#[derive(Clone)]
pub(crate) struct Stored {
    storage: Guarded,
    directory: String,
}

/// For how long an order may have the lock. An order is done well before, so that nobody has it who does not know.
pub(crate) const LEASE: Duration = Duration::from_secs(900);

/// For how long an answer is given if nobody takes it away, because its process was killed.
const ANSWER_LIFE: Duration = Duration::from_secs(900);

/// How many answers are stored at a time: orders follow one another, unless a lease was over.
const ANSWERS_MAX: usize = 32;

/// What is answered to those who check a name, by whichever instance they reach.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize, Serialize)]
pub(crate) struct Answer {
    pub(crate) name: String,
    pub(crate) token: String,
    /// The key authorization.
    pub(crate) text: String,
    /// It is given to connections (tls-alpn-01), or else to requests (http-01).
    pub(crate) is_by_connection: bool,
    /// Until when, in seconds since 1970.
    until: u64,
}

impl Answer {
    pub(crate) fn by_request(name: &str, token: &str, text: &str) -> Self {
        let [name, token, text] = [name, token, text].map(str::to_owned);
        Self { name, token, text, is_by_connection: false, until: 0 }
    }

    pub(crate) fn by_connection(name: &str, token: &str, text: &str) -> Self {
        Self { is_by_connection: true, ..Self::by_request(name, token, text) }
    }
}

/// A certificate that was read: its chain and after that its key, in PEM. The key stands last, so that half of the
/// text has none.
#[derive(Clone)]
pub(crate) struct Read {
    pub(crate) pem: Vec<u8>,
    pub(crate) present: Present,
}

/// An order that has begun. With it, whoever comes after a process that was killed goes on where that was.
#[derive(Clone, Deserialize, Serialize)]
pub(crate) struct Begun {
    /// The order's URL.
    pub(crate) order: String,
    /// The key that the certificate is to be for, in PEM.
    pub(crate) key: String,
}

impl Stored {
    pub(crate) fn new(storage: Guarded, directory: &str) -> Self {
        Self { storage, directory: folder_of(directory) }
    }

    fn key(&self, file: &str) -> String {
        format!("{}/{file}", self.directory)
    }

    /// What is kept of the account.
    pub(crate) fn account(&self) -> io::Result<Option<Vec<u8>>> {
        self.storage.load(&self.key("account.json"))
    }

    pub(crate) fn keep_account(&self, value: &[u8]) -> io::Result<()> {
        self.storage.store(&self.key("account.json"), value)
    }

    pub(crate) fn forget_account(&self) -> io::Result<()> {
        self.storage.remove(&self.key("account.json"))
    }

    /// The certificate of `name`. What cannot be used is told, and is taken for missing.
    pub(crate) fn certificate(&self, name: &str) -> Option<Read> {
        let key = self.key(&format!("{name}.pem"));
        let cause = match self.storage.load(&key) {
            Ok(None) => return None,
            Ok(Some(pem)) => match read(name, pem) {
                Ok(read) => return Some(read),
                Err(cause) => cause,
            },
            Err(error) => error.to_string(),
        };
        tracing::error!(target: "peregrine", name, key, cause,
            "the stored certificate cannot be used; another one will be ordered");
        None
    }

    pub(crate) fn keep_certificate(&self, name: &str, pem: &[u8]) -> io::Result<()> {
        self.storage.store(&self.key(&format!("{name}.pem")), pem)
    }

    /// The order for `name` that has begun.
    pub(crate) fn begun(&self, name: &str) -> Option<Begun> {
        let value = self.storage.load(&self.key(&format!("{name}.order.json"))).ok()??;
        serde_json::from_slice(&value).ok()
    }

    pub(crate) fn keep_begun(&self, name: &str, begun: &Begun) -> io::Result<()> {
        let value = serde_json::to_vec(begun)?;
        self.storage.store(&self.key(&format!("{name}.order.json")), &value)
    }

    pub(crate) fn forget_begun(&self, name: &str) -> io::Result<()> {
        self.storage.remove(&self.key(&format!("{name}.order.json")))
    }

    /// The right to order; `None` if another instance has it.
    pub(crate) fn try_lock(&self) -> io::Result<Option<Lock>> {
        self.storage.try_lock(&self.key("lock"), LEASE)
    }

    /// All answers that are given now. That they stand in one place lets whoever is asked read one thing, whatever
    /// strangers ask for; and it is emptied and not removed, since network file systems remember for long that something
    /// is missing.
    pub(crate) fn answers(&self, now: SystemTime) -> io::Result<Vec<Answer>> {
        let Some(value) = self.storage.load(&self.key(ANSWERS))? else { return Ok(Vec::new()) };
        let mut all: Vec<Answer> = serde_json::from_slice(&value)?;
        all.retain(|answer| answer.until > seconds(now));
        all.truncate(ANSWERS_MAX);
        Ok(all)
    }

    /// Gives an answer, in place of others for its name.
    pub(crate) fn put_answer(&self, answer: Answer, now: SystemTime) -> io::Result<()> {
        let until = seconds(now + ANSWER_LIFE);
        self.change_answers(now, |all| {
            all.retain(|known| known.name != answer.name);
            all.insert(0, Answer { until, ..answer });
        })
    }

    /// No longer gives the answer with this token.
    pub(crate) fn forget_answer(&self, token: &str, now: SystemTime) -> io::Result<()> {
        self.change_answers(now, |all| all.retain(|known| known.token != token))
    }

    /// Who has the lock changes them, so that nobody does meanwhile.
    fn change_answers(
        &self,
        now: SystemTime,
        change: impl FnOnce(&mut Vec<Answer>),
    ) -> io::Result<()> {
        // What is not whole is not there.
        let mut all = self.answers(now).unwrap_or_default();
        change(&mut all);
        all.truncate(ANSWERS_MAX);
        self.storage.store(&self.key(ANSWERS), &serde_json::to_vec(&all)?)
    }

    /// How often the storage has panicked.
    pub(crate) fn panics(&self) -> u64 {
        self.storage.panics()
    }

    /// Writes something and removes it, to see whether that can be done. It is as large as what is kept: a full disk
    /// still takes empty files.
    pub(crate) fn probe(&self) -> io::Result<()> {
        let key = self.key("probe");
        self.storage.store(&key, &[b'x'; 4096])?;
        self.storage.remove(&key)
    }
}

/// What instances answer for each other.
const ANSWERS: &str = "answers.json";

fn seconds(time: SystemTime) -> u64 {
    time.duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default().as_secs()
}

/// Reads a certificate for `name`.
pub(crate) fn read(name: &str, pem: Vec<u8>) -> Result<Read, String> {
    let found = inspect(&pem, &pem).map_err(|error: TlsError| error.to_string())?;
    let Inspected { names, not_before, not_after, serial, issuer } = found;
    if !names.iter().any(|found| covers(found, name)) {
        return Err(format!("it is for {}", names.join(", ")));
    }
    Ok(Read { pem, present: Present { not_before, not_after, issuer, serial } })
}

fn covers(found: &str, name: &str) -> bool {
    let parent = || name.split_once('.').map(|(_, parent)| parent);
    found == name || found.strip_prefix("*.").is_some_and(|rest| parent() == Some(rest))
}

/// The folder of a directory: its URL in letters that every file system has.
fn folder_of(url: &str) -> String {
    let rest = url.split_once("://").map_or(url, |(_, rest)| rest);
    let letter = |character: char| match character {
        'a'..='z' | '0'..='9' | '.' => character,
        'A'..='Z' => character.to_ascii_lowercase(),
        _ => '-',
    };
    let folder: String = rest.chars().map(letter).collect();
    let folder = folder.trim_matches(['-', '.']);
    if folder.is_empty() { "directory".to_owned() } else { folder.to_owned() }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::storage::Folder;
    use std::sync::Arc;

    fn made(name: &str) -> Vec<u8> {
        let parameters = rcgen::CertificateParams::new([name.to_owned()]).expect("it is a name");
        let key = rcgen::KeyPair::generate().expect("there is randomness");
        let chain = parameters.self_signed(&key).expect("it can be signed").pem();
        format!("{chain}{}", key.serialize_pem()).into_bytes()
    }

    fn stored() -> (tempfile::TempDir, Stored) {
        let root = tempfile::tempdir().expect("a folder");
        let storage = Guarded::new(Arc::new(Folder::new(root.path())));
        (root, Stored::new(storage, "https://ca.test:14000/dir"))
    }

    #[test]
    fn what_is_half_written_is_not_there() {
        let (_root, stored) = stored();
        assert!(stored.certificate("a.test").is_none());
        let pem = made("a.test");
        for end in (0..pem.trim_ascii_end().len()).step_by(11) {
            stored.keep_certificate("a.test", &pem[..end]).expect("there is room");
            assert!(stored.certificate("a.test").is_none(), "cut at {end}");
        }
        stored.keep_certificate("a.test", &pem).expect("there is room");
        assert_eq!(stored.certificate("a.test").expect("it is whole").pem, pem);
        // A certificate with the key of another one, and one for another name.
        let text = |bytes: &[u8]| String::from_utf8(bytes.to_vec()).expect("it is PEM");
        let (one, other) = (text(&pem), text(&made("a.test")));
        let key = other.find("-----BEGIN PRIVATE KEY").expect("it has one");
        let end = one.find("-----BEGIN PRIVATE KEY").expect("it has one");
        let mixed = format!("{}{}", &one[..end], &other[key..]);
        stored.keep_certificate("a.test", mixed.as_bytes()).expect("there is room");
        assert!(stored.certificate("a.test").is_none());
        stored.keep_certificate("a.test", &made("b.test")).expect("there is room");
        assert!(stored.certificate("a.test").is_none());
    }

    #[test]
    fn an_order_that_is_half_written_is_none() {
        let (root, stored) = stored();
        assert!(stored.begun("a.test").is_none());
        let begun = Begun { order: "https://ca.test/1".to_owned(), key: "key".to_owned() };
        stored.keep_begun("a.test", &begun).expect("there is room");
        assert_eq!(stored.begun("a.test").expect("it is whole").order, begun.order);
        let path = root.path().join("ca.test-14000-dir/a.test.order.json");
        let whole = std::fs::read(&path).expect("it is there");
        std::fs::write(&path, &whole[..whole.len() - 1]).expect("there is room");
        assert!(stored.begun("a.test").is_none());
        stored.forget_begun("a.test").expect("it may be removed");
        assert!(!path.exists());
    }

    #[test]
    fn an_answer_is_given_until_it_is_taken_away_or_its_time_is_over() {
        let (_root, stored) = stored();
        let now = SystemTime::UNIX_EPOCH + Duration::from_secs(1_000_000);
        let tokens = |now| -> Vec<String> {
            let all = stored.answers(now).expect("it can be read");
            all.into_iter().map(|answer| answer.token).collect()
        };
        assert!(tokens(now).is_empty());
        for (name, token) in [("a.test", "1"), ("b.test", "2"), ("a.test", "3")] {
            let answer = Answer::by_connection(name, token, "text");
            stored.put_answer(answer, now).expect("there is room");
        }
        assert_eq!(tokens(now), ["3", "2"], "one for each name");
        // Another instance has the lock, and takes away what is its own.
        let later = now + ANSWER_LIFE / 2;
        stored.put_answer(Answer::by_request("c.test", "4", "text"), later).expect("room");
        stored.forget_answer("2", later).expect("there is room");
        stored.forget_answer("2", later).expect("there is room");
        assert_eq!(tokens(later), ["4", "3"]);
        assert_eq!(tokens(now + ANSWER_LIFE), ["4"]);
        for number in 0..ANSWERS_MAX * 2 {
            let answer = Answer::by_request(&format!("{number}.test"), "5", "text");
            stored.put_answer(answer, later).expect("there is room");
        }
        assert_eq!(tokens(later).len(), ANSWERS_MAX);
        stored.storage.store(&stored.key(ANSWERS), b"[{").expect("there is room");
        assert!(stored.answers(now).is_err());
        stored.put_answer(Answer::by_request("c.test", "6", "text"), now).expect("room");
        assert_eq!(tokens(now), ["6"]);
    }

    #[cfg(unix)]
    #[test]
    fn what_cannot_be_read_is_not_there() {
        let (root, stored) = stored();
        // A folder in its place: that cannot be read by root either.
        let path = root.path().join("ca.test-14000-dir/a.test.pem");
        std::fs::create_dir_all(path).expect("there is room");
        assert!(stored.certificate("a.test").is_none());
        assert!(stored.keep_certificate("a.test", b"x").is_err());
    }

    #[test]
    fn directories_have_folders_of_their_own() {
        for (url, folder) in [
            (
                "https://acme-v02.api.letsencrypt.org/directory",
                "acme-v02.api.letsencrypt.org-directory",
            ),
            ("https://localhost:14000/dir", "localhost-14000-dir"),
            ("https://[::1]:8443/../A?b", "1--8443-..-a-b"),
            ("https://../..", "directory"),
        ] {
            assert_eq!(folder_of(url), folder, "{url}");
        }
    }

    #[test]
    fn a_wildcard_is_for_names_with_one_label_more() {
        for (found, name, expected) in [
            ("a.test", "a.test", true),
            ("*.test", "a.test", true),
            ("*.test", "b.a.test", false),
            ("*.a.test", "a.test", false),
            ("b.test", "a.test", false),
        ] {
            assert_eq!(covers(found, name), expected, "{found} {name}");
        }
    }
}
