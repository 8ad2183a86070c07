//! What the fake server is told to do. An empty object is a well-behaved server.

use std::collections::BTreeMap;
use std::path::PathBuf;

use serde::Deserialize;
use serde_json::Value;
use serde_json::value::RawValue;

#[derive(Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Script {
    /// Where to write what happened.
    pub journal: Option<PathBuf>,
    /// `serverInfo.name`.
    pub name: String,
    pub era: Era,
    /// The protocol version `initialize` is answered with; absent: the one offered.
    pub version: Option<String>,
    /// Waits so long before anything else.
    pub start_delay_ms: u64,
    /// Lines on stdout before anything else.
    pub banner: Vec<String>,
    /// Lines on stdout before every answer.
    pub noise: Vec<String>,
    pub crlf: bool,
    /// Every message begins with a byte order mark.
    pub bom: bool,
    /// Every byte in a write of its own.
    pub dribble: bool,
    pub ignore_eof: bool,
    pub term: Term,
    /// Tools beside those always there, exactly as they are to be listed.
    pub tools: Vec<Box<RawValue>>,
    /// Without those always there.
    pub only_these_tools: bool,
    /// Tools a page; 0: all at once.
    pub page_size: usize,
    pub cursor: Cursor,
    /// The environment variable `whoami` returns.
    pub credential: String,
    /// The file `count` counts in.
    pub counter: Option<PathBuf>,
    /// What to do instead of the right thing: by method, `tools/call:NAME`, `start`, `eof` or `resume` (HTTP: a
    /// GET with `Last-Event-ID`, which must be the id of a request).
    /// A tool that stands here and nowhere else is listed too.
    pub on: BTreeMap<String, Scene>,
    pub http: Http,
}

impl Script {
    pub fn parse(text: &str) -> Self {
        serde_json::from_str(text).unwrap_or_else(|fault| panic!("the script: {fault}: {text}"))
    }
}

impl Default for Script {
    fn default() -> Self {
        Self {
            journal: None,
            name: "fake".to_owned(),
            era: Era::Legacy,
            version: None,
            start_delay_ms: 0,
            banner: vec![],
            noise: vec![],
            crlf: false,
            bom: false,
            dribble: false,
            ignore_eof: false,
            term: Term::Default,
            tools: vec![],
            only_these_tools: false,
            page_size: 0,
            cursor: Cursor::Honest,
            credential: "TOKEN".to_owned(),
            counter: None,
            on: BTreeMap::new(),
            http: Http::default(),
        }
    }
}

/// How the server takes the probe (`server/discover`) and `initialize`.
#[derive(Clone, Copy, Deserialize, PartialEq)]
#[serde(rename_all = "snake_case")]
pub enum Era {
    /// -32601 to the probe.
    Legacy,
    /// -32022 to `initialize`.
    Modern,
    Both,
    /// Says nothing to the probe.
    Silent,
    /// Exits on the probe.
    Dies,
    /// Says nothing to the probe, and exits on the `initialize` that follows on the same pipe.
    SilentThenDies,
    /// An empty result to the probe.
    Empty,
}

#[derive(Clone, Copy, Deserialize, PartialEq)]
#[serde(rename_all = "snake_case")]
pub enum Term {
    /// Dies of it.
    Default,
    Ignore,
    /// Notes it in the journal and exits with 0.
    Note,
}

#[derive(Clone, Copy, Deserialize, PartialEq)]
#[serde(rename_all = "snake_case")]
pub enum Cursor {
    Honest,
    /// The same cursor, and the same page, for ever.
    Constant,
    /// A new cursor and a new page, for ever.
    Endless,
    /// The cursor of the second page is the empty string.
    Empty,
}

#[derive(Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Http {
    /// Answers as SSE (with the JSON in `data`) instead of JSON.
    pub sse: bool,
    pub sessions: bool,
    /// Offers a GET stream.
    pub get_stream: bool,
    /// The HTTP+SSE transport of 2024-11-05 instead of Streamable HTTP.
    pub legacy_sse: bool,
    /// How a session that is not (or no longer) known is answered.
    pub lost_status: u16,
    pub lost_body: String,
    /// Never answers a DELETE.
    pub hang_on_delete: bool,
}

impl Default for Http {
    fn default() -> Self {
        Self {
            sse: false,
            sessions: true,
            get_stream: false,
            legacy_sse: false,
            lost_status: 404,
            lost_body: String::new(),
            hang_on_delete: false,
        }
    }
}

/// Steps, every time or only the first times (counted in the journal, over all processes).
#[derive(Clone, Deserialize)]
#[serde(untagged)]
pub enum Scene {
    Always(Vec<Step>),
    Times { times: usize, steps: Vec<Step> },
}

/// One thing to do. In texts, `$ID` stands for the id of the request being answered.
#[derive(Clone, Deserialize)]
#[serde(tag = "do", rename_all = "snake_case", deny_unknown_fields)]
pub enum Step {
    /// The right thing.
    Execute,
    /// Notes that the tool has run, and answers nothing.
    Executed,
    /// An answer with this text as its result, byte for byte.
    Result {
        text: String,
    },
    /// An answer with this text as its error, byte for byte.
    Error {
        text: String,
    },
    /// A whole line, byte for byte.
    Line {
        text: String,
    },
    /// Bytes as Latin-1, no line end.
    Bytes {
        latin1: String,
    },
    /// A text block of so many bytes as the result; without its end: for ever.
    Giant {
        bytes: u64,
        #[serde(default)]
        endless: bool,
    },
    /// Waits.
    Wait {
        ms: u64,
    },
    /// Waits until the file is there.
    Until {
        file: PathBuf,
    },
    /// Notes in the journal that the step is reached.
    Note {
        text: String,
    },
    Exit {
        code: i32,
    },
    /// SIGKILL to itself.
    Kill,
    /// No answer, now or ever.
    Hang,
    /// Never reads stdin again.
    StopReading,
    CloseStdout,
    Stderr {
        text: String,
    },
    /// So many bytes on stderr, in lines.
    StderrFlood {
        bytes: usize,
    },
    /// The variable of that name on stderr.
    StderrVariable {
        name: String,
    },
    Notify {
        method: String,
        #[serde(default)]
        params: Option<Value>,
        #[serde(default = "one")]
        times: usize,
    },
    /// Progress with the token of the request.
    Progress {
        times: usize,
        #[serde(default)]
        every_ms: u64,
    },
    /// A request to the client, answered or not: its answer goes to the journal.
    Ask {
        method: String,
        #[serde(default)]
        params: Option<Value>,
    },
    /// From now on these tools instead of those of the script.
    Tools {
        tools: Vec<Value>,
    },
    /// From now on these steps for the key.
    On {
        key: String,
        steps: Vec<Step>,
    },
    /// A process below, which stays.
    Spawn {
        #[serde(default)]
        setsid: bool,
        #[serde(default)]
        holds_stdout: bool,
    },
    /// HTTP: this response instead of an answer.
    Http {
        status: u16,
        #[serde(default)]
        headers: BTreeMap<String, String>,
        #[serde(default)]
        body: String,
    },
    /// HTTP: forgets all sessions.
    Forget,
    /// HTTP: ends the connection at once, whatever has been written.
    Cut,
    /// HTTP: bytes (Latin-1) on the connection as they are.
    Tcp {
        latin1: String,
    },
}

fn one() -> usize {
    1
}
