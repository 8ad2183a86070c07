//! What happened, one JSON object a line, appended whole: the tests read it back.

use std::fs::{File, OpenOptions};
use std::io::Write;
use std::path::{Path, PathBuf};

use serde_json::{Value, json};

pub struct Journal {
    file: Option<(File, PathBuf)>,
}

impl Journal {
    pub fn open(path: Option<&Path>) -> Self {
        let file = path.map(|path| {
            let file = OpenOptions::new().append(true).create(true).open(path);
            (file.expect("the journal opens"), path.to_owned())
        });
        Self { file }
    }

    /// Appends an event; `members` is an object. Whole lines, also between processes.
    pub fn note(&self, event: &str, members: Value) {
        let Some((file, _)) = &self.file else { return };
        let mut line = json!({"event": event, "pid": std::process::id()});
        if let (Value::Object(line), Value::Object(members)) = (&mut line, members) {
            line.extend(members);
        }
        let mut file: &File = file;
        file.write_all(format!("{line}\n").as_bytes())
            .expect("the journal takes a line");
    }

    /// How often `event` of `key` is in the journal, earlier processes included.
    pub fn count(&self, event: &str, key: &str) -> usize {
        let (_, path) = self
            .file
            .as_ref()
            .expect("a script that counts has a journal");
        let text = std::fs::read_to_string(path).expect("the journal reads");
        text.lines()
            .filter_map(|line| serde_json::from_str::<Value>(line).ok())
            .filter(|line| line["event"] == event && line["key"] == key)
            .count()
    }
}
