//! Why the program does not start: each names the thing, the cause, and the fix.

use peregrine::auth::KeyError;
use peregrine::config::ConfigError;
use std::error::Error;
use std::fmt;
use std::io;
use std::path::PathBuf;

/// The program cannot start.
#[derive(Debug)]
pub enum StartError {
    /// A setting of the application is wrong.
    Settings(ConfigError),
    /// There is no secret, and this is no development.
    SecretMissing,
    /// The secret is too short.
    SecretShort {
        /// How long it is, in bytes.
        length: usize,
        /// How long it must be.
        least: usize,
    },
    /// The setting of this variable must not be zero.
    Zero(&'static str),
    /// The secret is not one.
    Secret(KeyError),
    /// The data base cannot be opened, or not be brought to the form of this version.
    Database(PathBuf, sqlx::Error),
    /// A later version of the program has changed the data base; so many steps were applied.
    DatabaseNewer(PathBuf, i64),
    /// The folder of uploads cannot be made.
    Uploads(PathBuf, io::Error),
    /// The system gives no random numbers.
    NoRandomNumbers,
    /// No password could be hashed.
    Passwords(argon2::password_hash::Error),
}

impl fmt::Display for StartError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Settings(error) => error.fmt(f),
            Self::SecretMissing => f.write_str(
                "CONDUIT_SECRET is not set, and tokens cannot be signed without it: give it 32 random bytes or more \
                 (`openssl rand -hex 32` makes some), or try the program with --development",
            ),
            Self::SecretShort { length, least } => {
                write!(f, "CONDUIT_SECRET has {length} bytes, which somebody could guess: give it {least} random ones or more")
            }
            Self::Zero(variable) => write!(f, "{variable} is 0: give it a number from 1 on"),
            Self::Secret(error) => write!(f, "CONDUIT_SECRET: {error}"),
            Self::Database(file, error) => write!(
                f,
                "CONDUIT_DATABASE: {} cannot be opened: {error}; does its folder exist, may this user write there, and \
                 is it a data base of this program, of this version or an older one?",
                file.display()
            ),
            Self::DatabaseNewer(file, steps) => write!(
                f,
                "CONDUIT_DATABASE: {} was changed by a later version of this program ({steps} steps): run that one, or \
                 name another file",
                file.display()
            ),
            Self::Uploads(folder, error) => write!(
                f,
                "CONDUIT_UPLOADS: the folder {} cannot be made: {error}; name one where this user may write",
                folder.display()
            ),
            Self::NoRandomNumbers => f.write_str("the system gives no random numbers"),
            Self::Passwords(error) => write!(f, "passwords cannot be hashed: {error}"),
        }
    }
}

impl Error for StartError {}
