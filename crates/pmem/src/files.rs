//! Files and their names, and who may read and write a file that replaces another or holds part of its content.

use crate::journal;
use crate::pool::MAGIC;
use rustix::fs::{CWD, RenameFlags};
use rustix::io::Errno;
use std::fs::{File, Metadata, Permissions};
use std::io;
use std::os::unix::fs::{FileExt, MetadataExt, PermissionsExt, fchown};
use std::path::Path;

/// The permission bits of the group.
const GROUP_MODE: u32 = 0o070;

/// Gives a file the owner and the permissions of another, as far as possible.
///
/// # Errors
/// Those of the system, when its permissions cannot be set.
pub fn keep_access(file: &File, like: &Metadata) -> io::Result<()> {
    // First, as it may remove permissions. Only the superuser gives files away; to give one to a group, its owner need only be a member.
    if fchown(file, Some(like.uid()), Some(like.gid())).is_err() {
        let _ = fchown(file, None, Some(like.gid()));
    }
    set_mode(file, like.mode(), like.gid())
}

/// Sets the permissions of a file; those of a group only if the file belongs to that group.
///
/// # Errors
/// Those of the system.
pub fn set_mode(file: &File, mode: u32, group: u32) -> io::Result<()> {
    let denied = if file.metadata()?.gid() == group { 0 } else { GROUP_MODE };
    file.set_permissions(Permissions::from_mode(mode & !denied))
}

/// Whether the path still names this file.
///
/// # Errors
/// Those of the system, except for a path that names nothing.
pub fn has_name(file: &File, path: &Path) -> io::Result<bool> {
    let identity = |metadata: Metadata| (metadata.dev(), metadata.ino());
    match std::fs::metadata(path) {
        Ok(named) => Ok(identity(named) == identity(file.metadata()?)),
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(false),
        Err(error) => Err(error),
    }
}

/// Whether there is a file that begins like a pool or its journal.
pub fn is_pool(path: &Path) -> bool {
    let mut begins = [0; 8];
    // Reading something other than a file may block.
    std::fs::metadata(path).is_ok_and(|metadata| metadata.is_file())
        && File::open(path).is_ok_and(|file| file.read_exact_at(&mut begins, 0).is_ok() && [MAGIC, journal::MAGIC].contains(&u64::from_le_bytes(begins)))
}

/// Renames a file within its file system, unless the new name exists.
///
/// # Errors
/// Those of the system; [`io::ErrorKind::AlreadyExists`].
pub fn rename_to_new(from: &Path, to: &Path) -> io::Result<()> {
    match rustix::fs::renameat_with(CWD, from, CWD, to, RenameFlags::NOREPLACE) {
        // Not every system and file system supports that. Then the file has two names for a moment, because renaming it would replace a file that has appeared
        // there.
        Err(Errno::INVAL | Errno::NOSYS | Errno::NOTSUP) => {
            std::fs::hard_link(from, to)?;
            std::fs::remove_file(from)
        }
        renamed => Ok(renamed?),
    }
}

/// Makes changes of names in the directory of `path` durable.
///
/// # Errors
/// Those of the system.
pub fn sync_directory_of(path: &Path) -> io::Result<()> {
    let directory = path.parent().filter(|parent| !parent.as_os_str().is_empty()).unwrap_or(Path::new("."));
    File::open(directory)?.sync_all()
}

/// Writes zeroes to the bytes `from..to`.
pub(crate) fn write_zeroes(file: &File, from: u64, to: u64) -> io::Result<()> {
    let zeroes = vec![0; 1 << 20];
    (from..to).step_by(zeroes.len()).try_for_each(|at| file.write_all_at(&zeroes[..zeroes.len().min((to - at) as usize)], at))
}

/// Bytes that cannot be guessed.
pub(crate) fn random<const COUNT: usize>() -> io::Result<[u8; COUNT]> {
    let mut bytes = [0; COUNT];
    rustix::rand::getrandom(&mut bytes, rustix::rand::GetRandomFlags::empty())?;
    Ok(bytes)
}
