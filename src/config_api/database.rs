//! One way to SQLite, MySQL, MariaDB and PostgreSQL.
//!
//! A statement is written once, in the words that SQLite and PostgreSQL share, with `?` for each
//! value. Where a database spells something else, its [`Dialect`] renders it.

use std::borrow::Cow;

use sqlx::mysql::{MySql, MySqlPool, MySqlRow};
use sqlx::postgres::{PgPool, PgRow, Postgres};
use sqlx::sqlite::{Sqlite, SqlitePool, SqliteRow};
use sqlx::{Arguments, AssertSqlSafe, Executor, FromRow, IntoArguments};

/// How often a statement is tried that lost against another one on the same rows.
const TRIES: usize = 4;

/// A statement and its values.
#[derive(Clone)]
pub struct Statement {
    text: &'static str,
    values: Vec<Value>,
}

/// A value of a statement.
#[derive(Clone)]
pub enum Value {
    Text(Option<String>),
    Flag(bool),
    Number(i64),
}

/// A statement without values yet.
pub fn sql(text: &'static str) -> Statement {
    Statement {
        text,
        values: Vec::new(),
    }
}

impl Statement {
    /// Gives the next `?` its value.
    pub fn bind(mut self, value: impl Into<Value>) -> Self {
        self.values.push(value.into());
        self
    }
}

impl From<&str> for Value {
    fn from(text: &str) -> Self {
        Self::Text(Some(text.to_owned()))
    }
}

impl From<String> for Value {
    fn from(text: String) -> Self {
        Self::Text(Some(text))
    }
}

impl From<&Option<String>> for Value {
    fn from(text: &Option<String>) -> Self {
        Self::Text(text.clone())
    }
}

impl From<bool> for Value {
    fn from(flag: bool) -> Self {
        Self::Flag(flag)
    }
}

impl From<i64> for Value {
    fn from(number: i64) -> Self {
        Self::Number(number)
    }
}

/// What rows of every database are read into.
pub trait Record:
    for<'r> FromRow<'r, SqliteRow>
    + for<'r> FromRow<'r, MySqlRow>
    + for<'r> FromRow<'r, PgRow>
    + Send
    + Unpin
{
}

impl<T> Record for T where
    T: for<'r> FromRow<'r, SqliteRow>
        + for<'r> FromRow<'r, MySqlRow>
        + for<'r> FromRow<'r, PgRow>
        + Send
        + Unpin
{
}

/// An open database. Cloning shares it.
#[derive(Clone)]
pub enum Database {
    Sqlite {
        /// One connection for life: while it is open the WAL index stays, and it sees the commits
        /// of all others in `PRAGMA data_version`. It never writes.
        reader: SqlitePool,
        /// One connection, opened by the first change.
        writer: SqlitePool,
    },
    MySql(MySqlPool),
    Postgres(PgPool),
}

/// Statements that happen together or not at all; dropped, not at all.
pub enum Transaction {
    Sqlite(sqlx::Transaction<'static, Sqlite>),
    MySql(sqlx::Transaction<'static, MySql>),
    Postgres(sqlx::Transaction<'static, Postgres>),
}

impl Database {
    /// The rows of a query.
    pub async fn fetch<T: Record>(&self, statement: Statement) -> sqlx::Result<Vec<T>> {
        match self {
            Self::Sqlite { reader, .. } => fetch(reader, statement).await,
            Self::MySql(pool) => fetch(pool, statement).await,
            Self::Postgres(pool) => fetch(pool, statement).await,
        }
    }

    /// Carries a change out by itself, again where it lost against another one; how many rows it
    /// concerned.
    pub async fn execute(&self, statement: Statement) -> sqlx::Result<u64> {
        for _ in 1..TRIES {
            match self.try_execute(statement.clone()).await {
                Err(error) if lost(&error) => {}
                done => return done,
            }
        }
        self.try_execute(statement).await
    }

    async fn try_execute(&self, statement: Statement) -> sqlx::Result<u64> {
        match self {
            Self::Sqlite { writer, .. } => execute(writer, statement).await,
            Self::MySql(pool) => execute(pool, statement).await,
            Self::Postgres(pool) => execute(pool, statement).await,
        }
    }

    /// Begins to read: every query sees the same moment.
    pub async fn moment(&self) -> sqlx::Result<Transaction> {
        Ok(match self {
            Self::Sqlite { reader, .. } => Transaction::Sqlite(reader.begin().await?),
            Self::MySql(pool) => Transaction::MySql(
                pool.begin_with("START TRANSACTION WITH CONSISTENT SNAPSHOT, READ ONLY")
                    .await?,
            ),
            Self::Postgres(pool) => Transaction::Postgres(
                pool.begin_with("BEGIN ISOLATION LEVEL REPEATABLE READ READ ONLY")
                    .await?,
            ),
        })
    }

    /// Begins a change that depends on what it reads: one of them at a time.
    pub async fn change(&self) -> sqlx::Result<Transaction> {
        const TURN: &str = "SELECT version FROM _sqlx_migrations WHERE version = 1 FOR UPDATE";
        Ok(match self {
            Self::Sqlite { writer, .. } => {
                Transaction::Sqlite(writer.begin_with("BEGIN IMMEDIATE").await?)
            }
            Self::MySql(pool) => {
                let mut change = pool.begin().await?;
                sqlx::query(TURN).execute(&mut *change).await?;
                Transaction::MySql(change)
            }
            Self::Postgres(pool) => {
                let mut change = pool.begin().await?;
                sqlx::query(TURN).execute(&mut *change).await?;
                Transaction::Postgres(change)
            }
        })
    }
}

impl Transaction {
    /// The rows of a query.
    pub async fn fetch<T: Record>(&mut self, statement: Statement) -> sqlx::Result<Vec<T>> {
        match self {
            Self::Sqlite(open) => fetch(&mut **open, statement).await,
            Self::MySql(open) => fetch(&mut **open, statement).await,
            Self::Postgres(open) => fetch(&mut **open, statement).await,
        }
    }

    /// Carries a change out; how many rows it concerned.
    pub async fn execute(&mut self, statement: Statement) -> sqlx::Result<u64> {
        match self {
            Self::Sqlite(open) => execute(&mut **open, statement).await,
            Self::MySql(open) => execute(&mut **open, statement).await,
            Self::Postgres(open) => execute(&mut **open, statement).await,
        }
    }

    pub async fn commit(self) -> sqlx::Result<()> {
        match self {
            Self::Sqlite(open) => open.commit().await,
            Self::MySql(open) => open.commit().await,
            Self::Postgres(open) => open.commit().await,
        }
    }
}

async fn fetch<'c, D: Dialect, T>(
    on: impl Executor<'c, Database = D>,
    statement: Statement,
) -> sqlx::Result<Vec<T>>
where
    D::Arguments: IntoArguments<D>,
    T: for<'r> FromRow<'r, D::Row> + Send + Unpin,
{
    let text = AssertSqlSafe(D::render(statement.text));
    let values = D::arguments(statement.values).map_err(sqlx::Error::Encode)?;
    sqlx::query_as_with(text, values).fetch_all(on).await
}

async fn execute<'c, D: Dialect>(
    on: impl Executor<'c, Database = D>,
    statement: Statement,
) -> sqlx::Result<u64>
where
    D::Arguments: IntoArguments<D>,
{
    let text = AssertSqlSafe(D::render(statement.text));
    let values = D::arguments(statement.values).map_err(sqlx::Error::Encode)?;
    let done = sqlx::query_with(text, values).execute(on).await?;
    Ok(D::affected(&done))
}

/// Whether the database gave way to another statement on the same rows: it did nothing.
fn lost(error: &sqlx::Error) -> bool {
    const SERIALIZATION_FAILURE: &str = "40001";
    const DEADLOCK: &str = "40P01";
    let code = error.as_database_error().and_then(|error| error.code());
    code.is_some_and(|code| [SERIALIZATION_FAILURE, DEADLOCK].contains(&&*code))
}

/// What a database spells in its own way.
trait Dialect: sqlx::Database {
    fn render(text: &'static str) -> Cow<'static, str>;

    /// # Errors
    /// A value that cannot be sent.
    fn arguments(values: Vec<Value>) -> Result<Self::Arguments, sqlx::error::BoxDynError>;

    fn affected(done: &Self::QueryResult) -> u64;
}

macro_rules! dialects {
    ($($database:ty: $render:expr;)+) => {$(
        impl Dialect for $database {
            fn render(text: &'static str) -> Cow<'static, str> {
                $render(text)
            }

            fn arguments(values: Vec<Value>) -> Result<Self::Arguments, sqlx::error::BoxDynError> {
                let mut arguments = Self::Arguments::default();
                for value in values {
                    match value {
                        Value::Text(text) => arguments.add(text)?,
                        Value::Flag(flag) => arguments.add(flag)?,
                        Value::Number(number) => arguments.add(number)?,
                    }
                }
                Ok(arguments)
            }

            fn affected(done: &Self::QueryResult) -> u64 {
                done.rows_affected()
            }
        }
    )+};
}

dialects! {
    Sqlite: Cow::Borrowed;
    MySql: for_mysql;
    Postgres: for_postgres;
}

/// `ON CONFLICT (..) DO UPDATE SET x = excluded.x` is `ON DUPLICATE KEY UPDATE x = VALUES(x)`.
fn for_mysql(text: &'static str) -> Cow<'static, str> {
    const FOLLOWS: &str = "DO UPDATE SET";
    let Some((insert, (_, update))) = text
        .split_once("ON CONFLICT")
        .and_then(|(insert, rest)| Some((insert, rest.split_once(FOLLOWS)?)))
    else {
        return text.into();
    };
    let mut rendered = format!("{insert}ON DUPLICATE KEY UPDATE");
    let mut parts = update.split("excluded.");
    rendered += parts.next().unwrap_or_default();
    for part in parts {
        let end = part
            .find(|c: char| !c.is_alphanumeric() && c != '_')
            .unwrap_or(part.len());
        rendered += &format!("VALUES({}){}", &part[..end], &part[end..]);
    }
    rendered.into()
}

/// The values are numbered: `$1`, `$2`, ...
fn for_postgres(text: &'static str) -> Cow<'static, str> {
    let mut parts = text.split('?');
    let mut rendered = parts.next().unwrap_or_default().to_owned();
    for (at, part) in parts.enumerate() {
        rendered += &format!("${}{part}", at + 1);
    }
    rendered.into()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_statement_is_rendered_for_each_database() {
        let text = "INSERT INTO t (a, b_c) VALUES (?, ?)
             ON CONFLICT (a) DO UPDATE SET b_c = excluded.b_c, d = TRUE";
        assert_eq!(
            for_postgres(text),
            "INSERT INTO t (a, b_c) VALUES ($1, $2)
             ON CONFLICT (a) DO UPDATE SET b_c = excluded.b_c, d = TRUE"
        );
        assert_eq!(
            for_mysql(text),
            "INSERT INTO t (a, b_c) VALUES (?, ?)
             ON DUPLICATE KEY UPDATE b_c = VALUES(b_c), d = TRUE"
        );
        assert_eq!(for_mysql("SELECT 1"), "SELECT 1");
    }
}
