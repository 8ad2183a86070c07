//! The store's files: private to the user who runs the process, never reached through a planted link.

use std::fs::{DirBuilder, File, Metadata, OpenOptions, Permissions};
use std::io::{self, Read, Write};
use std::os::unix::fs::{DirBuilderExt, MetadataExt, OpenOptionsExt, PermissionsExt};
use std::path::Path;

use rustix::fs::OFlags;

use super::vault::Vault;
use crate::model::secret::Secret;

const WRITABLE_BY_OTHERS: u32 = 0o022;
const OPEN_TO_OTHERS: u32 = 0o077;
const STICKY: u32 = 0o1000;

/// Makes the directory, with mode 0700, where there is none. One that others may write to loses
/// that; one that everybody shares is refused.
pub fn private_dir(path: &Path) -> Result<(), String> {
    let mut builder = DirBuilder::new();
    builder.recursive(true).mode(0o700);
    builder
        .create(path)
        .map_err(|error| format!("the directory {} cannot be made: {error}", path.display()))?;
    let found = path.metadata().map_err(|error| unreadable(path, &error))?;
    let mode = found.mode();
    if mode & WRITABLE_BY_OTHERS == 0 {
        return Ok(());
    }
    if mode & STICKY != 0 {
        return Err(format!(
            "{} is a directory that everybody may write to: keep the data in one of its own (MCP_CLIENT_DATA_DIR)",
            path.display()
        ));
    }
    tighten(path, mode & 0o7777 & !WRITABLE_BY_OTHERS)
}

/// Makes an empty file with mode 0600 where there is none; an existing one is made private.
/// It is not opened: closing it would drop the locks this process may hold on it.
pub fn private_file(path: &Path) -> Result<(), String> {
    match regular_file(path)? {
        Some(found) if found.mode() & OPEN_TO_OTHERS != 0 => tighten(path, 0o600),
        Some(_) => Ok(()),
        None => match new_private(path) {
            Ok(_) => Ok(()),
            Err(error) if error.kind() == io::ErrorKind::AlreadyExists => Ok(()),
            Err(error) => Err(format!("{} cannot be made: {error}", path.display())),
        },
    }
}

/// Makes an existing file private; one that is not there is fine.
pub fn tighten_if_there(path: &Path) -> Result<(), String> {
    match regular_file(path)? {
        Some(found) if found.mode() & OPEN_TO_OTHERS != 0 => tighten(path, 0o600),
        _ => Ok(()),
    }
}

/// The keys in the key file, which is made with a new key where there is none.
///
/// # Errors
/// Also for a key file that others may read: whoever could read it may have.
pub fn key_file(path: &Path) -> Result<Secret, String> {
    if regular_file(path)?.is_none() {
        make_key_file(path)
            .map_err(|error| format!("the key file {} cannot be made: {error}", path.display()))?;
    }
    read_key_file(path)
}

/// The keys in a key file that is there.
///
/// # Errors
/// Those of [`key_file`].
pub fn read_key_file(path: &Path) -> Result<Secret, String> {
    if regular_file(path)?.is_none() {
        return Err(format!("there is no key file {}", path.display()));
    }
    let mut file = OpenOptions::new()
        .read(true)
        .custom_flags(OFlags::NOFOLLOW.bits().cast_signed())
        .open(path)
        .map_err(|error| unreadable(path, &error))?;
    let found = file.metadata().map_err(|error| unreadable(path, &error))?;
    if found.mode() & OPEN_TO_OTHERS != 0 {
        return Err(format!(
            "the key file {path} is open to other users (mode {mode:04o}): run `chmod 600 {path}`, and change the stored credentials if others use this machine",
            path = path.display(),
            mode = found.mode() & 0o7777
        ));
    }
    let mut text = String::new();
    file.read_to_string(&mut text)
        .map_err(|error| unreadable(path, &error))?;
    Ok(Secret::new(text))
}

/// The file appears whole or not at all, and never replaces another.
fn make_key_file(path: &Path) -> io::Result<()> {
    let draft = path.with_extension(format!("draft-{}", std::process::id()));
    let written = new_private(&draft).and_then(|mut file| {
        file.write_all(Vault::generate_key().expose().as_bytes())?;
        file.write_all(b"\n")?;
        file.sync_all()
    });
    let linked = written.and_then(|()| std::fs::hard_link(&draft, path));
    let removed = std::fs::remove_file(&draft);
    match linked {
        Err(error) if error.kind() != io::ErrorKind::AlreadyExists => Err(error),
        _ => removed,
    }
}

/// Replaces the keys in a key file, whole or not at all, and for good once this returns.
pub fn replace_key_file(path: &Path, keys: &[&Secret]) -> Result<(), String> {
    let folder = path
        .parent()
        .filter(|parent| !parent.as_os_str().is_empty());
    let folder = folder.unwrap_or(Path::new("."));
    let replaced = tempfile::NamedTempFile::new_in(folder).and_then(|mut draft| {
        for key in keys {
            writeln!(draft, "{}", key.expose().trim_end())?;
        }
        draft.as_file().sync_all()?;
        draft.persist(path)?;
        File::open(folder)?.sync_all()
    });
    replaced.map_err(|error| {
        format!(
            "the key file {} cannot be replaced: {error}",
            path.display()
        )
    })
}

fn new_private(path: &Path) -> io::Result<File> {
    OpenOptions::new()
        .write(true)
        .create_new(true)
        .mode(0o600)
        .open(path)
}

fn regular_file(path: &Path) -> Result<Option<Metadata>, String> {
    match path.symlink_metadata() {
        Ok(found) if found.is_file() => Ok(Some(found)),
        Ok(_) => Err(format!(
            "{} is a link or no ordinary file: remove it, or keep the data elsewhere (MCP_CLIENT_DATA_DIR)",
            path.display()
        )),
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(None),
        Err(error) => Err(unreadable(path, &error)),
    }
}

fn tighten(path: &Path, mode: u32) -> Result<(), String> {
    tracing::warn!(path = %path.display(), "open to other users of this machine: taking that back");
    std::fs::set_permissions(path, Permissions::from_mode(mode)).map_err(|error| {
        format!(
            "{path} is open to other users and cannot be made private ({error}): run `chmod go-rwx {path}`",
            path = path.display()
        )
    })
}

fn unreadable(path: &Path, error: &io::Error) -> String {
    format!("{} cannot be read: {error}", path.display())
}

#[cfg(test)]
#[path = "files_tests.rs"]
mod tests;
