//! Sets the owner, group and mode of a Unix domain socket's file, which determine the users that
//! may connect.

use crate::error::Error;
#[cfg(unix)]
use std::path::Path;

/// The mode, owner and group of a Unix domain socket's file. `None` means the system's default.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct SocketFilePermissions {
    pub(crate) mode: Option<u32>,
    /// A user name or numeric id.
    pub(crate) user: Option<String>,
    /// A group name or numeric id.
    pub(crate) group: Option<String>,
}

impl SocketFilePermissions {
    /// Checks the mode, and whether the listener can have these attributes: they apply only to a
    /// Unix domain socket that this server creates. `address` is `None` for a socket bound
    /// elsewhere.
    pub(crate) fn validate(&self, address: Option<&str>) -> Result<(), Error> {
        if let Some(mode) = self.mode.filter(|mode| *mode > 0o777) {
            let text = format!("the mode {mode:o} of a socket's file must be from 0 to 777");
            return Err(Error::Config(text));
        }
        let is_unix = address.is_some_and(|address| address.starts_with("unix:"));
        if is_unix || *self == Self::default() {
            return Ok(());
        }
        let name = address.unwrap_or("a listener that was bound elsewhere");
        Err(Error::Config(format!(
            "a mode, an owner or a group is set for {name}, which is not a Unix domain socket \
             created by this server: remove these settings, or listen at `unix:/run/app.sock`"
        )))
    }
}

/// The attributes of a [`SocketFilePermissions`], with numeric ids in place of names.
#[cfg(unix)]
#[derive(Clone, Copy, Debug)]
pub(crate) struct ResolvedPermissions {
    mode: Option<u32>,
    user: Option<u32>,
    group: Option<u32>,
}

#[cfg(unix)]
impl SocketFilePermissions {
    /// Looks up the names of the user and the group.
    pub(crate) fn resolve(&self, path: &Path) -> Result<ResolvedPermissions, Error> {
        use nix::unistd::{Group, User};
        let path = path.display();
        let to_id = |kind: &str, name: &String, lookup: nix::Result<Option<u32>>| match lookup {
            // A numeric id is valid even if it is not in the user or group database.
            _ if name.parse::<u32>().is_ok() => Ok(name.parse().ok()),
            Ok(Some(id)) => Ok(Some(id)),
            Ok(None) => Err(Error::Config(format!(
                "the {kind} of unix:{path}: this system has no {kind} `{name}`: create it, or use \
                 an existing name or a number"
            ))),
            Err(cause) => Err(Error::Config(format!(
                "the {kind} of unix:{path}: `{name}` cannot be looked up: {}; use its number",
                std::io::Error::from(cause)
            ))),
        };
        let user = |name: &String| {
            let lookup = User::from_name(name).map(|user| user.map(|user| user.uid.as_raw()));
            to_id("user", name, lookup)
        };
        let group = |name: &String| {
            let lookup = Group::from_name(name).map(|group| group.map(|group| group.gid.as_raw()));
            to_id("group", name, lookup)
        };
        Ok(ResolvedPermissions {
            mode: self.mode,
            user: self.user.as_ref().map(user).transpose()?.flatten(),
            group: self.group.as_ref().map(group).transpose()?.flatten(),
        })
    }
}

#[cfg(unix)]
impl ResolvedPermissions {
    /// Applies these attributes to the file of a bound socket. The socket must not listen yet:
    /// until it does, all connections are refused, whatever the file's mode is.
    pub(crate) fn apply(self, path: &Path) -> Result<(), Error> {
        use std::os::unix::fs::{PermissionsExt, lchown};
        let display = path.display();
        if self.user.is_some() || self.group.is_some() {
            lchown(path, self.user, self.group).map_err(|cause| {
                Error::Config(format!(
                    "cannot set the owner or group of unix:{display}: {cause}; only root may change \
                     owners, and other users may only choose a group that they are in"
                ))
            })?;
        }
        let Some(mode) = self.mode else { return Ok(()) };
        let permissions = std::fs::Permissions::from_mode(mode);
        std::fs::set_permissions(path, permissions).map_err(|cause| {
            Error::Config(format!("the mode of unix:{display} cannot be set: {cause}"))
        })
    }
}
