//! Start-up errors. Each message names the thing, the cause and the fix.

use peregrine::auth::JwtKeyError;
use peregrine::config::ConfigError;
use std::error::Error;
use std::fmt;
use std::io;
use std::path::PathBuf;

/// The program cannot start.
#[derive(Debug)]
pub enum StartError {
    /// A setting of the application is invalid.
    Settings(ConfigError),
    /// The secret is not set, and the program does not run in development mode.
    SecretMissing,
    /// The secret is too short.
    SecretShort {
        /// The length of the secret, in bytes.
        length: usize,
        /// The minimum length, in bytes.
        least: usize,
    },
    /// The variable with this name must not be zero.
    Zero(&'static str),
    /// The secret cannot be used as a key.
    Secret(JwtKeyError),
    /// The database cannot be opened or migrated.
    Database(PathBuf, sqlx::Error),
    /// A newer version of the program has migrated the database; this many migrations are applied.
    DatabaseNewer(PathBuf, i64),
    /// The folder of uploads cannot be created.
    Uploads(PathBuf, io::Error),
    /// The system does not provide random numbers.
    NoRandomNumbers,
    /// Password hashing failed.
    Passwords(argon2::password_hash::Error),
}

impl fmt::Display for StartError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Settings(error) => error.fmt(f),
            Self::SecretMissing => f.write_str(
                "CONDUIT_SECRET is not set, and tokens cannot be signed without it: set it to at least 32 random bytes \
                 (`openssl rand -hex 32` prints some), or try the program with --development",
            ),
            Self::SecretShort { length, least } => {
                write!(f, "CONDUIT_SECRET has {length} bytes, which could be guessed: set it to at least {least} random bytes")
            }
            Self::Zero(variable) => write!(f, "{variable} is 0: set it to 1 or more"),
            Self::Secret(error) => write!(f, "CONDUIT_SECRET: {error}"),
            Self::Database(file, error) => write!(
                f,
                "CONDUIT_DATABASE: {} cannot be opened: {error}; does its folder exist, may this user write there, and \
                 is it a database of this version of the program or an older one?",
                file.display()
            ),
            Self::DatabaseNewer(file, steps) => write!(
                f,
                "CONDUIT_DATABASE: {} was migrated by a newer version of this program ({steps} migrations): run that version, or \
                 use another file",
                file.display()
            ),
            Self::Uploads(folder, error) => write!(
                f,
                "CONDUIT_UPLOADS: the folder {} cannot be created: {error}; use a folder that this user may write to",
                folder.display()
            ),
            Self::NoRandomNumbers => f.write_str("the system provides no random numbers"),
            Self::Passwords(error) => write!(f, "passwords cannot be hashed: {error}"),
        }
    }
}

impl Error for StartError {}
