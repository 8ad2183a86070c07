//! Reads the sources and fails on what the house does not allow: an import that runs up or sideways,
//! a foreign crate or a stream away from its home, a word without documentation, an invariant
//! without a test (ARCHITECTURE.md).

use std::fs;
use std::path::{Path, PathBuf};

/// The rooms, floor by floor from the ground.
const FLOORS: &[&[&str]] = &[
    &["model", "os"],
    &["mcp", "config_api"],
    &["pool", "catalog", "directory"],
    &["actions"],
    &["daemon"],
    &["cli", "main"],
];

/// Crates and their homes: paths below `src/` begin with one of these.
const CRATES: &[(&str, &[&str])] = &[
    ("rmcp", &["mcp/"]),
    (
        "reqwest",
        &[
            "mcp/http",
            "directory/",
            "config_api/jwks",
            "config_api/admin/client",
        ],
    ),
    ("axum", &["config_api/"]),
    ("hyper", &["config_api/"]),
    ("jsonwebtoken", &["config_api/"]),
    ("sqlx", &["config_api/"]),
    ("regex", &["model/template", "model/redact"]),
    ("landlock", &["os/linux.rs"]),
];

/// Paths into the standard library and tokio, and their homes. The demo server is an MCP server of
/// its own: its environment is what its definition gave it.
const PATHS: &[(&str, &[&str])] = &[
    ("env::var", ENVIRONMENT),
    ("env::var_os", ENVIRONMENT),
    ("env::vars", ENVIRONMENT),
    ("env::vars_os", ENVIRONMENT),
    ("env::set_var", &[]),
    ("env::remove_var", &[]),
    ("env::args", &["main.rs", "cli/"]),
    ("env::args_os", &["main.rs", "cli/"]),
    ("env::current_exe", &["os/unix.rs", "cli/transcript/"]),
    ("process::Command", PROCESSES),
    ("process::Child", PROCESSES),
    ("process::Stdio", PROCESSES),
    ("process::exit", &[]),
    ("time::SystemTime", CLOCK),
    ("io::stdout", STDOUT),
    ("print!", STDOUT),
    ("println!", STDOUT),
    ("dbg!", &[]),
    ("todo!", &[]),
];
const ENVIRONMENT: &[&str] = &["model/settings", "cli/demo_tools.rs"];
const PROCESSES: &[&str] = &[
    "mcp/",
    "cli/guardian.rs",
    "cli/transcript/",
    "config_api/keyring.rs",
];
/// Only to say what time it is: no deadline, pause or age may follow a clock that can be set.
const CLOCK: &[&str] = &["daemon/dispatch.rs", "config_api/", "cli/demo_tools.rs"];
const STDOUT: &[&str] = &["daemon/lines.rs", "cli/"];

struct Source {
    /// Below `src/`, with `/`.
    path: String,
    /// Without comments and the contents of strings.
    code: String,
}

fn root() -> &'static Path {
    Path::new(env!("CARGO_MANIFEST_DIR"))
}

fn files(folder: &Path, suffix: &str) -> Vec<PathBuf> {
    let mut found = Vec::new();
    for entry in fs::read_dir(folder).into_iter().flatten().flatten() {
        let path = entry.path();
        if path.is_dir() {
            found.extend(files(&path, suffix));
        } else if path.to_string_lossy().ends_with(suffix) {
            found.push(path);
        }
    }
    found
}

fn sources() -> Vec<Source> {
    let folder = root().join("src");
    let read = |path: PathBuf| {
        let text = fs::read_to_string(&path).expect("a source file");
        let below = path.strip_prefix(&folder).expect("below src");
        Source {
            path: below.to_string_lossy().replace('\\', "/"),
            code: bare(&text),
        }
    };
    let sources: Vec<_> = files(&folder, ".rs").into_iter().map(read).collect();
    assert!(sources.len() > 20, "the sources were not found");
    sources
}

/// Sources without tests: neither modules inside a file nor files that only tests include.
fn product() -> Vec<Source> {
    let mut sources = sources();
    let tests: Vec<String> = sources.iter().flat_map(test_files).collect();
    sources.retain(|source| !tests.iter().any(|test| source.path.starts_with(test)));
    for source in &mut sources {
        if let Some(at) = find_test_module(&source.code, "{") {
            source.code.truncate(at);
        }
    }
    sources
}

/// What `#[cfg(test)] mod name;` in this file includes: `dir/name.rs` and `dir/name/`.
fn test_files(source: &Source) -> Vec<String> {
    let folder = source.path.strip_suffix("mod.rs").map_or_else(
        || source.path.trim_end_matches(".rs").to_owned() + "/",
        str::to_owned,
    );
    let mut files = Vec::new();
    let mut rest = source.code.as_str();
    while let Some(at) = find_test_module(rest, ";") {
        let declared = &rest[at..];
        let end = declared.find(';').unwrap_or(declared.len());
        let name = words(&declared[..end]).last().map_or("", |(_, name)| name);
        files.extend([format!("{folder}{name}.rs"), format!("{folder}{name}/")]);
        rest = &declared[end..];
    }
    files
}

/// Where the first test module begins whose name is followed by `end`.
fn find_test_module(code: &str, end: &str) -> Option<usize> {
    let marks = code.match_indices("#[cfg(test)]").map(|(at, _)| at);
    marks.into_iter().find(|at| {
        let after = code[at + "#[cfg(test)]".len()..].trim_start();
        let after = after
            .trim_start_matches("pub(super) ")
            .trim_start_matches("pub(crate) ");
        let name = after.strip_prefix("mod ");
        name.is_some_and(|name| {
            name.trim_start_matches(is_word)
                .trim_start()
                .starts_with(end)
        })
    })
}

/// Blanks out comments and the contents of strings, so that only code is left.
fn bare(text: &str) -> String {
    let mut code = String::with_capacity(text.len());
    let mut rest = text;
    while let Some(c) = rest.chars().next() {
        let skipped = if rest.starts_with("//") {
            rest.find('\n').unwrap_or(rest.len())
        } else if rest.starts_with("/*") {
            rest.find("*/").map_or(rest.len(), |end| end + 2)
        } else if let Some(hashes) = raw_string(rest, code.chars().last()) {
            let close = format!("\"{}", "#".repeat(hashes));
            let body = hashes + 2;
            let end = rest[body..].find(&close);
            end.map_or(rest.len(), |end| body + end + close.len())
        } else if c == '"' {
            string_end(rest)
        } else if let Some(end) = char_end(rest) {
            end
        } else {
            code.push(c);
            rest = &rest[c.len_utf8()..];
            continue;
        };
        code.push(' ');
        rest = &rest[skipped..];
    }
    code
}

/// The number of hashes, where a raw string begins here.
fn raw_string(rest: &str, before: Option<char>) -> Option<usize> {
    let after = rest.strip_prefix('r')?;
    let hashes = after.len() - after.trim_start_matches('#').len();
    let starts = after[hashes..].starts_with('"') && !before.is_some_and(is_word);
    starts.then_some(hashes)
}

fn string_end(rest: &str) -> usize {
    let mut escaped = false;
    for (at, c) in rest.char_indices().skip(1) {
        match c {
            _ if escaped => escaped = false,
            '\\' => escaped = true,
            '"' => return at + 1,
            _ => {}
        }
    }
    rest.len()
}

/// The end of a character literal that begins here; lifetimes are none.
fn char_end(rest: &str) -> Option<usize> {
    let body = rest.strip_prefix('\'')?;
    if let Some(escape) = body.strip_prefix('\\') {
        let end = escape.char_indices().skip(1).find(|(_, c)| *c == '\'')?;
        return Some(end.0 + 3);
    }
    let first = body.chars().next()?;
    let after = &body[first.len_utf8()..];
    after.starts_with('\'').then_some(first.len_utf8() + 2)
}

fn is_word(c: char) -> bool {
    c.is_alphanumeric() || c == '_'
}

/// Every word with its position.
fn words(code: &str) -> impl Iterator<Item = (usize, &str)> {
    code.split(|c| !is_word(c))
        .filter(|word| !word.is_empty())
        .map(move |word| (word.as_ptr() as usize - code.as_ptr() as usize, word))
}

/// The names that directly follow `path::`: one, or those of a `{...}` group.
fn followers<'a>(code: &'a str, path: &str) -> Vec<&'a str> {
    let mut found = Vec::new();
    for (at, _) in code.match_indices(path) {
        if code[..at].ends_with(is_word) || code[..at].ends_with("::") {
            continue;
        }
        let rest = code[at + path.len()..].trim_start();
        match rest.strip_prefix('{') {
            Some(group) => found.extend(heads(group)),
            None => found.extend(words(rest).next().map(|(_, word)| word)),
        }
    }
    found
}

/// The first word of each item of a `use` group, whose opening brace is already read.
fn heads(group: &str) -> Vec<&str> {
    let mut heads = Vec::new();
    let (mut depth, mut begin) = (1, 0);
    for (at, c) in group.char_indices() {
        match c {
            '{' => depth += 1,
            '}' => depth -= 1,
            _ => {}
        }
        if depth == 0 || (depth == 1 && c == ',') {
            heads.extend(words(&group[begin..at]).next().map(|(_, word)| word));
            begin = at;
        }
        if depth == 0 {
            break;
        }
    }
    heads
}

fn room(path: &str) -> &str {
    path.split(['/', '.']).next().unwrap_or(path)
}

fn floor(room: &str) -> Option<usize> {
    FLOORS.iter().position(|rooms| rooms.contains(&room))
}

/// How deep in the tree of modules a file's items are.
fn depth(path: &str) -> usize {
    let parts = path.trim_end_matches(".rs").split('/');
    parts.filter(|part| *part != "mod").count()
}

fn is_at_home(path: &str, homes: &[&str]) -> bool {
    homes.iter().any(|home| path.starts_with(home))
}

/// Whether `path` (`a::b` or a macro's `name!`) stands in the code, as whole words.
fn stands_in(code: &str, path: &str) -> bool {
    code.match_indices(path).any(|(at, _)| {
        let after = &code[at + path.len()..];
        !code[..at].ends_with(is_word) && !after.starts_with(is_word)
    })
}

#[test]
fn no_import_runs_up_or_sideways() {
    let mut faults = Vec::new();
    for Source { path, code } in sources() {
        let own = room(&path);
        let level = floor(own).unwrap_or_else(|| panic!("{path} is in no room of FLOORS"));
        let up = "super::".repeat(depth(&path));
        let mut named = followers(&code, "crate::");
        named.extend(followers(&code, &up));
        for other in named {
            let is_below = floor(other).is_none_or(|other| other < level);
            if other != own && !is_below && own != "main" {
                faults.push(format!("{path}: uses `{other}`"));
            }
        }
    }
    assert!(faults.is_empty(), "{faults:#?}");
}

#[test]
fn every_foreign_crate_stays_in_its_home() {
    let mut faults = Vec::new();
    for Source { path, code } in product() {
        for (name, homes) in CRATES {
            let used = words(&code).any(|(at, word)| {
                let is_path = code[at + word.len()..].starts_with("::");
                let is_import = code[..at].ends_with("use ");
                word == *name && !code[..at].ends_with("::") && (is_path || is_import)
            });
            if used && !is_at_home(&path, homes) {
                faults.push(format!("{path}: uses `{name}`, whose home is {homes:?}"));
            }
        }
    }
    assert!(faults.is_empty(), "{faults:#?}");
}

#[test]
fn environment_clock_processes_and_stdout_stay_in_their_homes() {
    let mut faults = Vec::new();
    for Source { path, code } in product() {
        for (name, homes) in PATHS {
            let grouped = name.split_once("::").is_some_and(|(module, item)| {
                followers(&code, &format!("std::{module}::")).contains(&item)
                    || followers(&code, &format!("tokio::{module}::")).contains(&item)
            });
            if (grouped || stands_in(&code, name)) && !is_at_home(&path, homes) {
                faults.push(format!("{path}: uses `{name}`, whose home is {homes:?}"));
            }
        }
    }
    assert!(faults.is_empty(), "{faults:#?}");
}

/// Whatever asks for the system, or for what plain Unix lacks, has a counterpart in `os/unix.rs`.
#[test]
fn what_only_linux_has_stays_in_its_room() {
    const WORDS: &[&str] = &[
        "target_os",
        "plain_unix",
        "set_name",
        "set_child_subreaper",
        "set_parent_process_death_signal",
        "set_dumpable_behavior",
        "remove_capability_from_bounding_set",
        "fcntl_setpipe_size",
        "set_tcp_user_timeout",
    ];
    let mut faults = Vec::new();
    for Source { path, code } in product() {
        if path.starts_with("os/") {
            continue;
        }
        let used = words(&code).filter(|(_, word)| WORDS.contains(word));
        faults.extend(used.map(|(_, word)| format!("{path}: uses `{word}`")));
        let text = fs::read_to_string(root().join("src").join(&path)).expect("a source file");
        let (text, _) = text
            .split_once("#[cfg(test)]\nmod tests {")
            .unwrap_or((&text, ""));
        let files = ["\"/proc/", "\"/sys/"].into_iter();
        let read = files.filter(|start| text.contains(start));
        faults.extend(read.map(|start| format!("{path}: names a file in {start}")));
    }
    assert!(faults.is_empty(), "{faults:#?}");
}

/// A guard of the standard library keeps a task from being spawned when it is held over an await, and
/// clippy finds the rest; an asynchronous lock would be held over one without a word.
#[test]
fn no_lock_can_be_held_across_an_await() {
    let mut faults = Vec::new();
    for Source { path, code } in product() {
        let imported = followers(&code, "tokio::sync::");
        if imported
            .iter()
            .any(|name| ["Mutex", "RwLock"].contains(name))
        {
            faults.push(path);
        }
    }
    assert!(faults.is_empty(), "asynchronous locks in {faults:#?}");
}

/// The words of a `words!` list, read from the source: `Variant = "word",`.
fn listed_words(file: &str, list: &str) -> Vec<String> {
    let text = fs::read_to_string(root().join("src").join(file)).expect("the list's file");
    let body = text
        .split_once(&format!("{list} {{\n"))
        .and_then(|(_, rest)| rest.split_once("\n    }"))
        .unwrap_or_else(|| panic!("no list {list} in {file}"))
        .0;
    let quoted = |line: &str| line.split('"').nth(1).map(str::to_owned);
    body.lines().filter_map(quoted).collect()
}

#[test]
fn every_word_of_the_protocol_is_documented() {
    let page = root().join("docs/line-protocol.md");
    let page = fs::read_to_string(page).expect("docs/line-protocol.md");
    for list in ["ErrorCode", "Phase", "Outcome"] {
        let words = listed_words("model/error.rs", list);
        assert!(!words.is_empty());
        for word in words {
            let shown =
                page.contains(&format!("`{word}`")) || page.contains(&format!("\"{word}\""));
            assert!(
                shown,
                "{list}: `{word}` is missing in docs/line-protocol.md"
            );
        }
    }
}

#[test]
fn every_setting_is_documented() {
    let known = fs::read_to_string(root().join("config/default.toml")).expect("the settings");
    let pages: String = files(&root().join("docs"), ".md")
        .iter()
        .filter_map(|page| fs::read_to_string(page).ok())
        .collect();
    let mut section = String::new();
    for line in known.lines() {
        if let Some(name) = line
            .strip_prefix('[')
            .and_then(|line| line.strip_suffix(']'))
        {
            section = name.to_owned();
        }
        let setting = line.trim_start_matches("# ").split_once(" = ");
        if let Some((key, _)) = setting.filter(|(key, _)| key.chars().all(is_word)) {
            assert!(pages.contains(key), "`{section}.{key}` is missing in docs/");
        }
    }
}

#[test]
fn every_invariant_names_a_test_that_exists() {
    let page = fs::read_to_string(root().join("ARCHITECTURE.md")).expect("ARCHITECTURE.md");
    let code: String = [root().join("src"), root().join("tests")]
        .iter()
        .flat_map(|folder| files(folder, ".rs"))
        .filter_map(|path| fs::read_to_string(path).ok())
        .collect();
    let (_, invariants) = page.split_once("## Invariants").expect("the invariants");
    let (invariants, _) = invariants.split_once("\n## ").expect("the next chapter");
    let mut count = 0;
    for invariant in invariants.split("\n1. ").skip(1) {
        count += 1;
        let tests: Vec<&str> = invariant
            .split('`')
            .skip(1)
            .step_by(2)
            .filter(|name| name.matches('_').count() >= 3 && name.chars().all(is_word))
            .collect();
        assert!(!tests.is_empty(), "no test is named for: {invariant}");
        for test in tests {
            let found = code.contains(&format!("fn {test}("));
            assert!(
                found,
                "ARCHITECTURE.md names a test that does not exist: {test}"
            );
        }
    }
    assert_eq!(count, 13, "invariants in ARCHITECTURE.md");
}

#[test]
fn the_reader_sees_code_only() {
    let code = bare(
        "use a::b; // println!(\nlet x = \"print!(\\\"\"; 'x' '\\'' r#\"io::stdout\"# &'a str /* dbg! */ c",
    );
    assert!(stands_in(&code, "a::b"));
    assert!(code.ends_with(" c") && code.contains("&'a str"), "{code}");
    for hidden in ["println!", "print!", "io::stdout", "dbg!"] {
        assert!(!stands_in(&code, hidden), "{hidden} in {code}");
    }
    let groups = "use crate::{pool::{Pool, mcp}, model::error};\nuse crate::mcp;";
    assert_eq!(followers(groups, "crate::"), ["pool", "model", "mcp"]);
    assert!(!stands_in("eprintln!(1)", "println!"));
}
