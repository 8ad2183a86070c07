//! Notices commits to a SQLite file, whoever makes them, without asking SQLite.
//!
//! In WAL mode every commit rewrites the header of the WAL index, the file beside the database
//! whose name ends in `-shm`. Two equal headers mean that nothing was committed in between.

use std::ffi::OsString;
use std::fs::File;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::sync::{Mutex, PoisonError};

/// The two copies of the header at the start of the file. What follows changes without a commit.
const HEADER: usize = 96;

/// The state of the database file at one moment.
#[derive(Clone, Copy, PartialEq, Eq)]
pub struct Mark([u8; HEADER]);

pub struct WalIndex {
    path: PathBuf,
    /// Never closed: closing any descriptor of the file would drop the locks that SQLite holds on
    /// it in this process.
    file: Mutex<Option<&'static File>>,
}

impl WalIndex {
    /// For the database at `path`, which a connection of this process keeps open.
    pub fn new(path: &Path) -> Self {
        let mut name = OsString::from(path);
        name.push("-shm");
        Self {
            path: name.into(),
            file: Mutex::new(None),
        }
    }

    /// The header now. `None`: it cannot be read this way.
    pub fn mark(&self) -> Option<Mark> {
        let file = self.file()?;
        let mut header = [0; HEADER];
        file.read_exact_at(&mut header, 0).ok()?;
        let initialized = header.iter().any(|byte| *byte != 0);
        initialized.then_some(Mark(header))
    }

    fn file(&self) -> Option<&'static File> {
        let mut slot = self.file.lock().unwrap_or_else(PoisonError::into_inner);
        let still_there = |file: &&File| rustix::fs::fstat(file).is_ok_and(|it| it.st_nlink > 0);
        if let Some(file) = slot.filter(still_there) {
            return Some(file);
        }
        let file: &'static File = Box::leak(Box::new(File::open(&self.path).ok()?));
        *slot = Some(file);
        Some(file)
    }
}

/// Distinguishes nothing: the header is of no use to a reader.
impl std::fmt::Debug for Mark {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Mark")
    }
}
