//! Databases of a test's own, on the servers that the tests are pointed at, dropped at the end.
//!
//! `MCP_TEST_POSTGRES` and `MCP_TEST_MYSQL` name a server and a user that may create databases, as
//! URLs without a database. Without a server a test says so and leaves it out; with `CI=true`
//! that is a failure. Unit and integration tests both include this file.

use std::sync::atomic::{AtomicUsize, Ordering};

use sqlx::{AssertSqlSafe, ConnectOptions, Connection, Executor};

/// A kind of database.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    Sqlite,
    MySql,
    Postgres,
}

impl Kind {
    pub const ALL: [Self; 3] = [Self::Sqlite, Self::MySql, Self::Postgres];

    /// Where the server is, and the database from which others are created.
    fn server(self) -> (String, &'static str) {
        let (variable, default, first) = match self {
            Self::Sqlite => return (String::new(), ""),
            Self::MySql => ("MCP_TEST_MYSQL", "mysql://root@127.0.0.1:3306", ""),
            Self::Postgres => (
                "MCP_TEST_POSTGRES",
                "postgres://postgres@127.0.0.1:5432",
                "/postgres",
            ),
        };
        let url = std::env::var(variable).unwrap_or_else(|_| default.to_owned());
        (url.trim_end_matches('/').to_owned(), first)
    }

    fn administer(self, statement: String) -> Result<(), String> {
        let (server, first) = self.server();
        let url = format!("{server}{first}");
        match self {
            Self::Sqlite => Ok(()),
            Self::MySql => alone(perform::<sqlx::MySqlConnection>(url, statement)),
            Self::Postgres => alone(perform::<sqlx::PgConnection>(url, statement)),
        }
    }
}

/// In a runtime of its own, so that it works inside another one and in `drop`.
fn alone(work: impl Future<Output = sqlx::Result<()>> + Send + 'static) -> Result<(), String> {
    let thread = std::thread::spawn(|| {
        let runtime = tokio::runtime::Builder::new_current_thread()
            .enable_all()
            .build()
            .expect("a runtime");
        runtime.block_on(work).map_err(|error| error.to_string())
    });
    thread.join().expect("it does not panic")
}

async fn perform<C>(url: String, statement: String) -> sqlx::Result<()>
where
    C: Connection,
    for<'c> &'c mut C: Executor<'c, Database = C::Database>,
{
    let options: C::Options = url.parse()?;
    let mut connection = options.connect().await?;
    connection.execute(AssertSqlSafe(statement)).await?;
    connection.close().await
}

/// An empty database.
pub struct TestDatabase {
    pub kind: Kind,
    /// As `store.url` takes it.
    pub url: String,
    name: String,
    _directory: tempfile::TempDir,
}

impl TestDatabase {
    /// `None`: there is no such server, and the tests may do without it.
    pub fn new(kind: Kind) -> Option<Self> {
        static NEXT: AtomicUsize = AtomicUsize::new(0);
        let number = NEXT.fetch_add(1, Ordering::Relaxed);
        let name = format!("mcp_client_test_{}_{number}", std::process::id());
        let directory = tempfile::tempdir().expect("a temporary directory");
        let url = match kind {
            Kind::Sqlite => format!("sqlite://{}", directory.path().join("test.db").display()),
            _ => format!("{}/{name}", kind.server().0),
        };
        if let Err(error) = kind.administer(format!("CREATE DATABASE {name}")) {
            let missing = format!("{kind:?} cannot be used, see scripts/test: {error}");
            assert!(std::env::var_os("CI").is_none(), "{missing}");
            eprintln!("skipped: {missing}");
            return None;
        }
        Some(Self {
            kind,
            url,
            name,
            _directory: directory,
        })
    }

    /// One of each kind that there is.
    pub fn of_each_kind() -> Vec<Self> {
        Kind::ALL.into_iter().filter_map(Self::new).collect()
    }

    /// Carries a statement out in it.
    #[allow(dead_code)]
    pub fn execute(&self, statement: String) {
        let done = match self.kind {
            Kind::Sqlite => alone(perform::<sqlx::SqliteConnection>(
                self.url.clone(),
                statement,
            )),
            Kind::MySql => alone(perform::<sqlx::MySqlConnection>(
                self.url.clone(),
                statement,
            )),
            Kind::Postgres => alone(perform::<sqlx::PgConnection>(self.url.clone(), statement)),
        };
        done.expect("the statement is carried out");
    }

    /// Ends every connection to it but this one, as a server does that is restarted.
    #[allow(dead_code)]
    pub fn end_connections(&self) {
        let name = &self.name;
        let done = match self.kind {
            Kind::Sqlite => Ok(()),
            Kind::Postgres => self.kind.administer(format!(
                "SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE datname = '{name}'"
            )),
            Kind::MySql => self.kind.administer(format!(
                "BEGIN NOT ATOMIC
                   FOR one IN (SELECT id FROM information_schema.processlist WHERE db = '{name}') DO
                     EXECUTE IMMEDIATE CONCAT('KILL ', one.id);
                   END FOR;
                 END"
            )),
        };
        done.expect("connections can be ended");
    }
}

impl Drop for TestDatabase {
    fn drop(&mut self) {
        // A transaction that is still open would hold it up.
        if self.kind == Kind::MySql {
            self.end_connections();
        }
        let force = match self.kind {
            Kind::Postgres => " WITH (FORCE)",
            _ => "",
        };
        let dropped = self
            .kind
            .administer(format!("DROP DATABASE {}{force}", self.name));
        if let Err(error) = dropped {
            eprintln!("{} is left behind: {error}", self.name);
        }
    }
}
