//! Who may read and write a file that takes the place of another, or holds some of what it holds.

use std::fs::{File, Metadata, Permissions};
use std::io;
use std::os::unix::fs::{MetadataExt, PermissionsExt, fchown};

/// What the group may do.
const GROUP_MODE: u32 = 0o070;

/// Gives a file the owner and the permissions of another, as far as may be.
///
/// # Errors
/// Those of the system, when its permissions cannot be set.
pub fn keep(file: &File, like: &Metadata) -> io::Result<()> {
    // First, for it may take permissions away. Only the superuser gives files away; to give one to a group, its owner need only be in it.
    if fchown(file, Some(like.uid()), Some(like.gid())).is_err() {
        let _ = fchown(file, None, Some(like.gid()));
    }
    set_mode(file, like.mode(), like.gid())
}

/// Gives a file permissions; those of a group only if it is that group's.
///
/// # Errors
/// Those of the system.
pub fn set_mode(file: &File, mode: u32, group: u32) -> io::Result<()> {
    let denied = if file.metadata()?.gid() == group { 0 } else { GROUP_MODE };
    file.set_permissions(Permissions::from_mode(mode & !denied))
}
