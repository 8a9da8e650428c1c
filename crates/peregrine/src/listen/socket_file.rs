//! Whose the file of a Unix domain socket is, and so who may connect.

use crate::error::Error;
#[cfg(unix)]
use std::path::Path;

/// What the file of a Unix domain socket is to be; what is not said is as the system makes it.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct FileOwner {
    pub(crate) mode: Option<u32>,
    /// A name, or a number.
    pub(crate) user: Option<String>,
    /// The same.
    pub(crate) group: Option<String>,
}

impl FileOwner {
    /// Has it an effect at `address`, which is `None` where somebody else made the socket?
    pub(crate) fn check(&self, address: Option<&str>) -> Result<(), Error> {
        if let Some(mode) = self.mode.filter(|mode| *mode > 0o777) {
            let text = format!("the mode {mode:o} of a socket's file: it may be from 0 to 777");
            return Err(Error::Config(text));
        }
        let is_unix = address.is_some_and(|address| address.starts_with("unix:"));
        if is_unix || *self == Self::default() {
            return Ok(());
        }
        let place = address.unwrap_or("a listener that was given");
        Err(Error::Config(format!(
            "a mode, an owner or a group is set for {place}, which is no Unix domain socket that this server makes: \
             leave them out, or listen at `unix:/run/app.sock`"
        )))
    }
}

/// The numbers of a user and a group, where they are said.
#[cfg(unix)]
#[derive(Clone, Copy, Debug)]
pub(crate) struct Resolved {
    mode: Option<u32>,
    user: Option<u32>,
    group: Option<u32>,
}

#[cfg(unix)]
impl FileOwner {
    /// Looks names up.
    pub(crate) fn resolve(&self, path: &Path) -> Result<Resolved, Error> {
        use nix::unistd::{Group, User};
        let place = path.display();
        let number = |what: &str, name: &String, found: nix::Result<Option<u32>>| match found {
            // A number needs no entry anywhere.
            _ if name.parse::<u32>().is_ok() => Ok(name.parse().ok()),
            Ok(Some(number)) => Ok(Some(number)),
            Ok(None) => Err(Error::Config(format!(
                "the {what} of unix:{place}: this system knows no {what} `{name}`: make it, or write a name or a \
                 number that there is"
            ))),
            Err(cause) => Err(Error::Config(format!(
                "the {what} of unix:{place}: `{name}` cannot be looked up: {}; write its number",
                std::io::Error::from(cause)
            ))),
        };
        let user = |name: &String| {
            let found = User::from_name(name).map(|user| user.map(|user| user.uid.as_raw()));
            number("user", name, found)
        };
        let group = |name: &String| {
            let found = Group::from_name(name).map(|group| group.map(|group| group.gid.as_raw()));
            number("group", name, found)
        };
        Ok(Resolved {
            mode: self.mode,
            user: self.user.as_ref().map(user).transpose()?.flatten(),
            group: self.group.as_ref().map(group).transpose()?.flatten(),
        })
    }
}

#[cfg(unix)]
impl Resolved {
    /// Makes the file that was bound so. Nobody can have connected: a socket that does not listen yet refuses everybody,
    /// whatever its file's mode is.
    pub(crate) fn apply(self, path: &Path) -> Result<(), Error> {
        use std::os::unix::fs::{PermissionsExt, lchown};
        let place = path.display();
        if self.user.is_some() || self.group.is_some() {
            lchown(path, self.user, self.group).map_err(|cause| {
                Error::Config(format!(
                    "unix:{place} cannot be given to its owner or group: {cause}; only root may give files away, and \
                     others may give theirs to groups that they are in"
                ))
            })?;
        }
        let Some(mode) = self.mode else { return Ok(()) };
        let permissions = std::fs::Permissions::from_mode(mode);
        std::fs::set_permissions(path, permissions).map_err(|cause| {
            Error::Config(format!("the mode of unix:{place} cannot be set: {cause}"))
        })
    }
}
