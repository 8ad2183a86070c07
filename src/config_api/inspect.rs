//! Looks at the store as it is: makes nothing, changes nothing, upgrades nothing.

use std::fs::File;
use std::io::Read;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

use sqlx::ConnectOptions;
use sqlx::sqlite::SqliteConnectOptions;

use super::store::{BUSY_TIMEOUT, MIGRATIONS, path, schema_version};
use super::vault::Vault;
use crate::model::secret::Secret;
use crate::model::settings::StoreSettings;

/// What was found. Where something is `None`, it is not there yet: the first start makes it.
#[derive(Debug)]
pub struct Inspection {
    /// Or why the settings name none.
    pub database: Result<PathBuf, String>,
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
    let database = path(settings);
    let schema = match &database {
        Ok(path) => schema(path).await,
        Err(reason) => Err(reason.clone()),
    };
    let key_file = settings.data_dir.join("store.key");
    let files = database.iter().flat_map(|path| {
        ["", "-wal", "-shm"].map(|suffix| {
            let mut name = path.as_os_str().to_owned();
            name.push(suffix);
            PathBuf::from(name)
        })
    });
    let folders = [Some(settings.data_dir.as_path()), parent(&database)];
    let folders = folders.into_iter().flatten().map(Path::to_path_buf);
    let mut open: Vec<_> = folders
        .filter_map(|folder| open_to_others(folder, 0o022))
        .chain(files.filter_map(|file| open_to_others(file, 0o077)))
        .collect();
    open.dedup();
    Inspection {
        newest_schema: newest(),
        key: match &settings.key {
            Some(key) => Vault::new(key).map(|_| Some("store.key of the settings".to_owned())),
            None => key(&key_file),
        },
        open_to_others: open,
        database,
        schema,
    }
}

fn parent(database: &Result<PathBuf, String>) -> Option<&Path> {
    database.as_ref().ok()?.parent()
}

fn newest() -> i64 {
    let versions = MIGRATIONS.iter().map(|migration| migration.version);
    versions.max().unwrap_or_default()
}

async fn schema(path: &Path) -> Result<Option<i64>, String> {
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
    let version = schema_version(&mut connection).await;
    let version = version.map_err(|error| error.to_string())?.unwrap_or(0);
    if version > newest() {
        return Err(format!(
            "a newer version of this program has written it (schema {version}): use that version"
        ));
    }
    Ok(Some(version))
}

fn key(file: &Path) -> Result<Option<String>, String> {
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
