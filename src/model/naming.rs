//! The names under which tools are injected, and the folding of server names.

use super::settings::Naming;

/// Case, `-`, `_` and space alike.
pub fn fold(name: &str) -> String {
    name.chars()
        .map(|letter| {
            if matches!(letter, '-' | ' ') {
                '_'
            } else {
                letter
            }
        })
        .collect::<String>()
        .to_lowercase()
}

/// Names the tools of one snapshot: same definitions, same names, always.
#[derive(Debug)]
pub struct Namer {}

impl Namer {
    /// `servers`: the names of all definitions of the snapshot, enabled or not.
    pub fn new<'a>(servers: impl IntoIterator<Item = &'a str>) -> Self {
        let _ = servers.into_iter().count();
        todo!()
    }

    /// The injected name of a server's tool: 1 to 64 of `[A-Za-z0-9_-]`.
    pub fn injected(&self, form: Naming, server: &str, tool: &str) -> String {
        let _ = (form, server, tool);
        todo!()
    }

    /// Whether `name` can be the injected name of one of this server's tools, judged by its prefix.
    pub fn fits(&self, form: Naming, server: &str, name: &str) -> bool {
        let _ = (form, server, name);
        todo!()
    }
}
