//! Who is still alive, seen from /proc.

use std::path::PathBuf;

use super::TAG;

/// The processes that carry `tag` in their environment, with their command lines. Zombies count.
pub fn left_over(tag: &str) -> Vec<(i32, String)> {
    let wanted = format!("{TAG}={tag}");
    let own = i32::try_from(std::process::id()).expect("a pid");
    let mut found = vec![];
    for entry in std::fs::read_dir("/proc").expect("/proc").flatten() {
        let Ok(pid) = entry.file_name().to_string_lossy().parse::<i32>() else {
            continue;
        };
        let environment = std::fs::read(entry.path().join("environ")).unwrap_or_default();
        if pid != own
            && environment
                .split(|&byte| byte == 0)
                .any(|line| line == wanted.as_bytes())
        {
            let command = std::fs::read(entry.path().join("cmdline")).unwrap_or_default();
            found.push((pid, String::from_utf8_lossy(&command).replace('\0', " ")));
        }
    }
    found
}

/// The parent of a process, if it lives.
pub fn parent_of(pid: i64) -> Option<i64> {
    stat(pid)?.get(1)?.parse().ok()
}

/// `R`, `S`, `Z`, ... of a process, if there is one.
pub fn state_of(pid: i64) -> Option<String> {
    stat(pid)?.first().cloned()
}

/// The fields after the name, which may itself hold spaces and parentheses.
fn stat(pid: i64) -> Option<Vec<String>> {
    let text = std::fs::read_to_string(PathBuf::from(format!("/proc/{pid}/stat"))).ok()?;
    let (_, fields) = text.rsplit_once(')')?;
    Some(fields.split_whitespace().map(str::to_owned).collect())
}
