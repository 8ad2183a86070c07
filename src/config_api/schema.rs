//! The migrations, the same in three dialects. A database that a newer version has written is left
//! untouched.

use std::time::Duration;

use sqlx::migrate::{MigrateError, Migrator};
use sqlx::mysql::MySqlPool;
use tokio::time::sleep;

use super::database::{Database, sql};

static SQLITE: Migrator = sqlx::migrate!("migrations/sqlite");
static MYSQL: Migrator = sqlx::migrate!("migrations/mysql");
static POSTGRES: Migrator = sqlx::migrate!("migrations/postgres");

const TRIES: u32 = 5;
const PAUSE: Duration = Duration::from_millis(20);

/// What is said of a database that a newer version has written.
pub(super) const NEWER: &str = "a newer version of this program has written it: use that version";

/// The migration that this version brings a database to; it is the same in every dialect.
pub(super) fn newest() -> i64 {
    let versions = SQLITE.iter().map(|migration| migration.version);
    versions.max().unwrap_or_default()
}

/// Brings the schema up to date.
///
/// # Errors
/// Reads after "cannot be used: ".
pub(super) async fn migrate(database: &Database) -> Result<(), String> {
    version(database).await.map_err(|error| error.to_string())?;
    // Another process may be doing the same: then a later try finds the work done.
    let mut tries = 0;
    loop {
        tries += 1;
        match migrate_once(database).await {
            Err(reason) if tries < TRIES && reason != NEWER => sleep(PAUSE * tries).await,
            done => return done,
        }
    }
}

async fn migrate_once(database: &Database) -> Result<(), String> {
    let there = version(database).await.map_err(|error| error.to_string())?;
    if there > Some(newest()) {
        return Err(NEWER.to_owned());
    }
    if let Database::Sqlite { reader, .. } = database {
        sqlx::query("PRAGMA journal_mode = WAL")
            .execute(reader)
            .await
            .map_err(|error| error.to_string())?;
    }
    if there == Some(newest()) {
        return Ok(());
    }
    let run = match database {
        Database::Sqlite { reader, .. } => SQLITE.run(reader).await,
        Database::MySql(pool) => migrate_mysql(pool).await,
        Database::Postgres(pool) => POSTGRES.run(pool).await,
    };
    run.map_err(|error| error.to_string())
}

/// MariaDB does not wait for the lock that the migrator asks for, and tables are made one by one.
async fn migrate_mysql(pool: &MySqlPool) -> Result<(), MigrateError> {
    const LOCK: &str = "SELECT GET_LOCK(CONCAT('mcp-client ', MD5(database())), 60)";
    const UNLOCK: &str = "SELECT RELEASE_LOCK(CONCAT('mcp-client ', MD5(database())))";
    let mut connection = pool.acquire().await?;
    sqlx::query(LOCK).execute(&mut *connection).await?;
    let run = MYSQL.run(&mut *connection).await;
    sqlx::query(UNLOCK).execute(&mut *connection).await?;
    run
}

/// The newest migration that was applied; `None` for an empty database.
pub(super) async fn version(database: &Database) -> sqlx::Result<Option<i64>> {
    let known = sql(match database {
        Database::Sqlite { .. } => {
            "SELECT name FROM sqlite_schema WHERE type = 'table' AND name = '_sqlx_migrations'"
        }
        Database::MySql(_) => {
            "SELECT table_name FROM information_schema.tables
             WHERE table_schema = database() AND table_name = '_sqlx_migrations'"
        }
        Database::Postgres(_) => {
            "SELECT CAST(table_name AS TEXT) FROM information_schema.tables
             WHERE table_schema = current_schema() AND table_name = '_sqlx_migrations'"
        }
    });
    if database.fetch::<(String,)>(known).await?.is_empty() {
        return Ok(None);
    }
    let newest = sql("SELECT max(version) FROM _sqlx_migrations WHERE success");
    let newest = database.fetch::<(Option<i64>,)>(newest).await?;
    Ok(newest.into_iter().find_map(|(version,)| version))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_dialects_have_the_same_migrations() {
        let listed = |migrator: &Migrator| -> Vec<(i64, String)> {
            let all = migrator.iter();
            all.map(|it| (it.version, it.description.to_string()))
                .collect()
        };
        assert_eq!(listed(&SQLITE), listed(&MYSQL));
        assert_eq!(listed(&SQLITE), listed(&POSTGRES));
    }
}
