//! Looks for the `task_id` of a line that cannot be read as a whole: too long, or not JSON.

use bytes::Bytes;

use super::protocol::TaskId;

/// Longer ids are not kept of a line that is thrown away.
const LONGEST_ID: usize = 4096;

/// Reads a line piece by piece and remembers the value of its top-level member `task_id` (or `taskId`), the
/// first where there are several. Holds no more than one key or id at a time.
#[derive(Debug, Default)]
pub struct Scan {
    depth: usize,
    /// Inside a string; `Some(true)` right after a backslash.
    string: Option<bool>,
    keeping: Keeping,
    token: Vec<u8>,
    /// A key may follow, not a value.
    at_key: bool,
    /// The last key was `task_id`.
    is_id: bool,
    /// Found, or the line is no object: nothing more to look for.
    done: bool,
    found: Option<TaskId>,
}

#[derive(Debug, Default, PartialEq)]
enum Keeping {
    #[default]
    Nothing,
    Key,
    Text,
    Number,
}

impl Scan {
    pub fn feed(&mut self, piece: &[u8]) {
        for &byte in piece {
            if self.done {
                return;
            }
            match self.string {
                Some(escaped) => self.in_string(byte, escaped),
                None => self.between(byte),
            }
        }
    }

    /// The id, or none.
    pub fn finish(mut self) -> TaskId {
        self.end_number();
        self.found.unwrap_or_default()
    }

    fn in_string(&mut self, byte: u8, escaped: bool) {
        self.keep(byte);
        match (escaped, byte) {
            (false, b'"') => self.end_string(),
            (false, b'\\') => self.string = Some(true),
            _ => self.string = Some(false),
        }
    }

    fn end_string(&mut self) {
        self.string = None;
        match std::mem::take(&mut self.keeping) {
            Keeping::Key => {
                let key = serde_json::from_slice::<String>(&self.token);
                self.is_id = key.is_ok_and(|key| ["task_id", "taskId"].contains(&&*key));
            }
            Keeping::Text => self.take_id(),
            Keeping::Nothing | Keeping::Number => {}
        }
    }

    fn between(&mut self, byte: u8) {
        match byte {
            b' ' | b'\t' | b'\r' | b'\n' => self.end_number(),
            b'{' | b'[' => self.open(byte),
            _ if self.depth == 0 => self.done = true,
            b'}' | b']' => self.close(),
            b',' => {
                self.end_number();
                if self.depth == 1 {
                    self.at_key = true;
                    self.is_id = false;
                }
            }
            b':' if self.depth == 1 => self.at_key = false,
            b'"' => self.begin_string(),
            _ if self.keeping == Keeping::Number => self.keep(byte),
            b'-' | b'0'..=b'9' if self.is_value_of_id() => self.begin(Keeping::Number, byte),
            _ => {}
        }
    }

    fn open(&mut self, byte: u8) {
        self.end_number();
        if self.depth == 0 {
            self.done = byte != b'{';
            self.at_key = true;
        }
        self.is_id = false;
        self.depth += 1;
    }

    fn close(&mut self) {
        self.end_number();
        self.depth -= 1;
        self.done |= self.depth == 0;
    }

    fn begin_string(&mut self) {
        self.end_number();
        self.string = Some(false);
        if self.depth == 1 && self.at_key {
            self.begin(Keeping::Key, b'"');
        } else if self.is_value_of_id() {
            self.begin(Keeping::Text, b'"');
        }
    }

    fn is_value_of_id(&self) -> bool {
        self.depth == 1 && !self.at_key && self.is_id
    }

    fn begin(&mut self, keeping: Keeping, byte: u8) {
        self.keeping = keeping;
        self.token.clear();
        self.token.push(byte);
    }

    fn keep(&mut self, byte: u8) {
        if self.keeping != Keeping::Nothing && self.token.len() <= LONGEST_ID {
            self.token.push(byte);
        }
    }

    fn end_number(&mut self) {
        if self.keeping == Keeping::Number {
            self.keeping = Keeping::Nothing;
            self.take_id();
        }
    }

    fn take_id(&mut self) {
        if self.token.len() <= LONGEST_ID {
            self.found = TaskId::read(Bytes::copy_from_slice(&self.token));
        }
        self.done = true;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn id_in(line: &str) -> String {
        let mut whole = Scan::default();
        whole.feed(line.as_bytes());
        let mut by_byte = Scan::default();
        line.as_bytes()
            .chunks(1)
            .for_each(|byte| by_byte.feed(byte));
        let (whole, by_byte) = (whole.finish(), by_byte.finish());
        assert_eq!(whole, by_byte, "{line}");
        String::from_utf8(whole.raw().to_vec()).expect("UTF-8")
    }

    #[test]
    fn finds_the_top_level_id_and_no_other() {
        for (line, expected) in [
            (r#"{"task_id":"a","x":"#, r#""a""#),
            (
                r#" { "x" : [1,{"task_id":"no"}] , "task_id" : "a\"b\\" "#,
                r#""a\"b\\""#,
            ),
            (r#"{"task_id":-12.5e3,"#, "-12.5e3"),
            (r#"{"task_id":7"#, "7"),
            (r#"{"x":1,"taskId":"a","x":"#, r#""a""#),
            (r#"{"TaskId":1,"task_ids":2}"#, "null"),
            (r#"{"task\u005fid":"a","x":"#, r#""a""#),
            (r#"{"\u0074\u0061\u0073\u006b\u0049\u0064":3"#, "3"),
            (r#"{"task\_id":1,"\ntask_id":2}"#, "null"),
            (r#"{"task_id":7}"#, "7"),
            (r#"{"x":"\"task_id\":1","task_id":2}"#, "2"),
            (r#"{"x":"task_id","y":3}"#, "null"),
            (r#"{"task_id":1,"task_id":2}"#, "1"),
            (r#"{"task_id":{"task_id":1},"x":2}"#, "null"),
            (r#"{"task_id":[1],"x":2}"#, "null"),
            (r#"{"task_id":null,"x":2}"#, "null"),
            (r#"{"task_id":01}"#, "null"),
            (r#"{"task_id":"unfinished"#, "null"),
            (r#"{"task_id":7{12"#, "7"),
            (r#"{"task_id":7"12"#, "7"),
            (r#"["task_id",1]"#, "null"),
            (r#"nonsense {"task_id":1}"#, "null"),
            ("", "null"),
        ] {
            assert_eq!(id_in(line), expected, "{line}");
        }
    }

    #[test]
    fn keeps_little_of_a_huge_line() {
        let mut scan = Scan::default();
        scan.feed(b"{\"");
        (0..1_000).for_each(|_| scan.feed(&[b'x'; 1_000]));
        assert!(scan.token.capacity() < 4 * LONGEST_ID);
        scan.feed(b"\":1,\"task_id\":5,");
        assert_eq!(scan.finish().raw().as_ref(), b"5");
    }
}
