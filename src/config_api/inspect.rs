//! Looks at the store as it is: makes nothing, changes nothing, upgrades nothing.

use std::fs::File;
use std::io::Read;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

use sqlx::ConnectOptions;
use sqlx::sqlite::SqliteConnectOptions;

use super::keyring::KeySource;
use super::location::{BUSY_TIMEOUT, Location};
use super::schema::{NEWER, newest, version};
use super::vault::Vault;
use crate::model::secret::Secret;
use crate::model::settings::StoreSettings;

/// What was found. Where something is `None`, it is not there yet: the first start makes it.
#[derive(Debug)]
pub struct Inspection {
    /// Where it is, or why the settings name none.
    pub database: Result<String, String>,
    /// Whether the database is there, as far as that can be seen without connecting.
    pub is_there: bool,
    /// The newest migration that was applied, or why the database cannot be used.
    pub schema: Result<Option<i64>, String>,
    /// The migration that this version brings the database to.
    pub newest_schema: i64,
    /// Where the key is, or why it cannot be used.
    pub key: Result<Option<String>, String>,
    /// Files and directories that others may read (a directory: write), with their modes.
    pub open_to_others: Vec<(PathBuf, u32)>,
}

/// Inspects the store that the settings name.
pub async fn inspect(settings: &StoreSettings) -> Inspection {
    let location = Location::of(settings);
    let database = location.as_ref().map(ToString::to_string);
    let database = database.map_err(Clone::clone);
    let file = match &location {
        Ok(Location::File(path)) => Some(path.clone()),
        _ => None,
    };
    let schema = match location {
        Ok(Location::File(path)) => schema_of_file(&path).await,
        Ok(elsewhere) => schema_elsewhere(elsewhere).await,
        Err(reason) => Err(reason),
    };
    let files = file.iter().flat_map(|path| {
        ["", "-wal", "-shm"].map(|suffix| {
            let mut name = path.as_os_str().to_owned();
            name.push(suffix);
            PathBuf::from(name)
        })
    });
    let folders = [
        Some(settings.data_dir.as_path()),
        file.as_deref().and_then(Path::parent),
    ];
    let folders = folders.into_iter().flatten().map(Path::to_path_buf);
    let mut open: Vec<_> = folders
        .filter_map(|folder| open_to_others(folder, 0o022))
        .chain(files.filter_map(|file| open_to_others(file, 0o077)))
        .collect();
    open.dedup();
    Inspection {
        newest_schema: newest(),
        key: key(settings).await,
        open_to_others: open,
        is_there: file.is_none_or(|path| path.exists()),
        database,
        schema,
    }
}

async fn schema_of_file(path: &Path) -> Result<Option<i64>, String> {
    if !path.try_exists().map_err(|error| error.to_string())? {
        return Ok(None);
    }
    let options = SqliteConnectOptions::new()
        .filename(path)
        .busy_timeout(BUSY_TIMEOUT);
    let mut connection = options.connect().await.map_err(|error| error.to_string())?;
    let sound: String = sqlx::query_scalar("PRAGMA quick_check(1)")
        .fetch_one(&mut connection)
        .await
        .map_err(|error| error.to_string())?;
    if sound != "ok" {
        return Err(format!("the file is damaged: {sound}"));
    }
    drop(connection);
    schema_elsewhere(Location::File(path.to_owned())).await
}

async fn schema_elsewhere(location: Location) -> Result<Option<i64>, String> {
    let database = location.open(1);
    let version = version(&database)
        .await
        .map_err(|error| error.to_string())?;
    if version > Some(newest()) {
        return Err(NEWER.to_owned());
    }
    Ok(version)
}

async fn key(settings: &StoreSettings) -> Result<Option<String>, String> {
    let source = KeySource::of(settings)?;
    match &source {
        KeySource::File { path, .. } => key_in(path),
        KeySource::Setting(_) | KeySource::Command(_) => {
            let vault = source.vault().await;
            vault.map(|_| Some(source.to_string()))
        }
    }
}

fn key_in(file: &Path) -> Result<Option<String>, String> {
    let shown = file.display();
    let mut opened = match File::open(file) {
        Ok(opened) => opened,
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => return Ok(None),
        Err(error) => return Err(format!("{shown} cannot be read: {error}")),
    };
    let found = opened.metadata().map_err(|error| error.to_string())?;
    if found.mode() & 0o077 != 0 {
        return Err(format!(
            "{shown} is open to other users (mode {:04o}) and so is not used: run `chmod 600 {shown}`, and change the stored credentials if others use this machine",
            found.mode() & 0o7777
        ));
    }
    let mut text = String::new();
    opened
        .read_to_string(&mut text)
        .map_err(|error| format!("{shown} cannot be read: {error}"))?;
    let vault = Vault::new(&Secret::new(text));
    vault.map_err(|reason| format!("the key in {shown} {reason}"))?;
    Ok(Some(shown.to_string()))
}

fn open_to_others(path: PathBuf, mask: u32) -> Option<(PathBuf, u32)> {
    let mode = path.metadata().ok()?.mode() & 0o7777;
    (mode & mask != 0).then_some((path, mode))
}
