//! The names under which tools are injected, and the folding of server names.
//!
//! An injected name is either *plain* (prefix and tool as they are) or *hashed* (it ends in `_` and
//! eight characters made from server and tool). A plain name never looks like a hashed one, so
//! the two kinds cannot meet; plain names of two servers cannot meet because a tool that falls under
//! another server's longer prefix is hashed.

use std::collections::HashMap;

use sha2::{Digest, Sha256};

use super::settings::Naming;

/// What model APIs take.
const MAX_NAME: usize = 64;
/// Characters of the hash, without its underscore.
const HASH: usize = 8;
/// What is left of a name beside its hash.
const MAX_BASE: usize = MAX_NAME - HASH - 1;

/// Case, `-`, `_` and space alike.
pub fn fold(name: &str) -> String {
    let lower = name.to_lowercase();
    lower.replace(['-', ' '], "_")
}

/// Names the tools of one snapshot: same definitions, same names, always.
#[derive(Debug)]
pub struct Namer {
    single: HashMap<String, Prefix>,
    double: HashMap<String, Prefix>,
}

/// How every name of one server begins.
#[derive(Debug)]
struct Prefix {
    text: String,
    /// The server's name had characters that no injected name can hold.
    changed: bool,
    /// Prefixes of other servers that begin with this one.
    longer: Vec<String>,
}

impl Namer {
    /// `servers`: the names of all definitions of the snapshot, enabled or not.
    pub fn new<'a>(servers: impl IntoIterator<Item = &'a str>) -> Self {
        let servers: Vec<&str> = servers.into_iter().collect();
        Self {
            single: prefixes(Naming::Single, &servers),
            double: prefixes(Naming::Double, &servers),
        }
    }

    /// The injected name of a server's tool: 1 to 64 of `[A-Za-z0-9_-]`.
    pub fn injected(&self, form: Naming, server: &str, tool: &str) -> String {
        match self.table(form).get(server) {
            Some(prefix) => prefix.name(server, tool),
            None => Prefix::new(form, server).name(server, tool),
        }
    }

    /// Whether `name` can be the injected name of one of this server's tools, judged by its prefix.
    pub fn fits(&self, form: Naming, server: &str, name: &str) -> bool {
        match self.table(form).get(server) {
            Some(prefix) => prefix.fits(name),
            None => Prefix::new(form, server).fits(name),
        }
    }

    fn table(&self, form: Naming) -> &HashMap<String, Prefix> {
        match form {
            Naming::Single => &self.single,
            Naming::Double => &self.double,
        }
    }
}

fn prefixes(form: Naming, servers: &[&str]) -> HashMap<String, Prefix> {
    let mut sorted: Vec<String> = servers
        .iter()
        .map(|server| Prefix::new(form, server).text)
        .collect();
    sorted.sort_unstable();
    sorted.dedup();
    let named = |server: &&str| {
        let mut prefix = Prefix::new(form, server);
        let first = sorted.partition_point(|other| *other <= prefix.text);
        prefix.longer = sorted[first..]
            .iter()
            .take_while(|other| other.starts_with(&prefix.text))
            .cloned()
            .collect();
        (String::from(*server), prefix)
    };
    servers.iter().map(named).collect()
}

impl Prefix {
    fn new(form: Naming, server: &str) -> Self {
        let clean = sanitised(server);
        Self {
            text: match form {
                Naming::Single => format!("mcp_{clean}_"),
                Naming::Double => format!("mcp__{clean}__"),
            },
            changed: clean != server,
            longer: Vec::new(),
        }
    }

    fn name(&self, server: &str, tool: &str) -> String {
        let mut name = String::with_capacity(self.text.len() + tool.len() + HASH + 1);
        name.push_str(&self.text);
        name.extend(tool.chars().map(allowed));
        if self.is_plain(&name, tool) {
            return name;
        }
        // All ASCII here, so every index is a boundary.
        name.truncate(MAX_BASE);
        name.push('_');
        push_hash(&mut name, server, tool);
        name
    }

    fn is_plain(&self, name: &str, tool: &str) -> bool {
        !self.changed
            && name.len() <= MAX_NAME
            && name[self.text.len()..] == *tool
            && !looks_hashed(name)
            && !self.longer.iter().any(|other| name.starts_with(other))
    }

    /// A prefix too long to leave room for a hash is itself cut in hashed names.
    fn fits(&self, name: &str) -> bool {
        name.starts_with(&self.text)
            || (self.text.len() > MAX_BASE
                && looks_hashed(name)
                && name.len() == MAX_NAME
                && self.text.starts_with(&name[..MAX_BASE]))
    }
}

fn sanitised(text: &str) -> String {
    text.chars().map(allowed).collect()
}

fn allowed(c: char) -> char {
    if c.is_ascii_alphanumeric() || c == '-' {
        c
    } else {
        '_'
    }
}

/// Eight hexadecimal characters, the first a letter: `report_20240131` does not look like a hash.
fn push_hash(name: &mut String, server: &str, tool: &str) {
    let mut hasher = Sha256::new();
    // The length keeps (`ab`, `c`) and (`a`, `bc`) apart.
    hasher.update((server.len() as u64).to_le_bytes());
    hasher.update(server);
    hasher.update(tool);
    let digest = hasher.finalize();
    name.push(char::from(b'a' + digest[0] % 6));
    let digits = digest[1..].iter().map(|byte| byte & 0xf);
    name.extend(
        digits
            .take(HASH - 1)
            .filter_map(|digit| char::from_digit(digit.into(), 16)),
    );
}

/// Whether `name` (any text) ends as [`push_hash`] ends names.
fn looks_hashed(name: &str) -> bool {
    let Some((_, end)) = name.as_bytes().split_last_chunk::<{ HASH + 1 }>() else {
        return false;
    };
    let digit = |byte: &u8| matches!(byte, b'0'..=b'9' | b'a'..=b'f');
    name.is_ascii() && end[0] == b'_' && end[1].is_ascii_lowercase() && end[1..].iter().all(digit)
}

#[cfg(test)]
mod fuzz;

#[cfg(test)]
mod tests {
    use std::collections::{HashMap, HashSet};

    use proptest::prelude::*;

    use super::*;

    const FORMS: [Naming; 2] = [Naming::Single, Naming::Double];

    fn single(servers: &[&str], server: &str, tool: &str) -> String {
        Namer::new(servers.iter().copied()).injected(Naming::Single, server, tool)
    }

    #[test]
    fn a_name_that_fits_stays_as_it_is() {
        assert_eq!(single(&["books"], "books", "find"), "mcp_books_find");
        let namer = Namer::new(["books"]);
        let double = namer.injected(Naming::Double, "books", "find");
        assert_eq!(double, "mcp__books__find");
        assert_eq!(
            single(&["books"], "books", "report_20240131"),
            "mcp_books_report_20240131"
        );
    }

    #[test]
    fn a_changed_name_ends_in_a_hash_of_server_and_tool() {
        let dotted = single(&["books"], "books", "find.all");
        assert!(dotted.starts_with("mcp_books_find_all_"), "{dotted}");
        assert!(looks_hashed(&dotted), "{dotted}");
        let spaced = single(&["books"], "books", "find all");
        assert!(spaced.starts_with("mcp_books_find_all_"), "{spaced}");
        assert_ne!(dotted, spaced);
        assert_ne!(dotted, single(&["books"], "books", "find_all"));
        // The very names are part of the contract: a host may have stored them.
        assert_eq!(dotted, "mcp_books_find_all_e7d5d1e1");
    }

    #[test]
    fn a_long_name_is_cut_to_64_and_ends_in_a_hash() {
        let (a, b) = ("x".repeat(80) + "a", "x".repeat(80) + "b");
        let (first, second) = (single(&["s"], "s", &a), single(&["s"], "s", &b));
        assert_eq!((first.len(), second.len()), (64, 64));
        assert_ne!(first, second);
        let just = "x".repeat(64 - "mcp_s_".len());
        assert_eq!(single(&["s"], "s", &just), format!("mcp_s_{just}"));
    }

    #[test]
    fn servers_whose_sanitised_names_are_equal_share_no_tool_name() {
        let servers = ["a.b", "a b", "a_b"];
        let names: HashSet<_> = servers.map(|s| single(&servers, s, "t")).into();
        assert_eq!(names.len(), 3);
        assert!(names.contains("mcp_a_b_t"));
    }

    #[test]
    fn a_prefix_that_is_itself_cut_still_fits_its_own_names() {
        let long = "s".repeat(70);
        let namer = Namer::new([long.as_str(), "t"]);
        let name = namer.injected(Naming::Single, &long, "tool");
        assert_eq!(name.len(), 64);
        assert!(namer.fits(Naming::Single, &long, &name));
        assert!(!namer.fits(Naming::Single, "t", &name));
        assert!(!namer.fits(Naming::Single, &long, &name[..63]));
    }

    #[test]
    fn only_tools_under_the_longer_prefix_get_the_hash() {
        let servers = ["a", "a_b"];
        assert_eq!(single(&servers, "a_b", "c"), "mcp_a_b_c");
        assert_eq!(single(&servers, "a", "c"), "mcp_a_c");
        assert_eq!(single(&["a"], "a", "b_c"), "mcp_a_b_c");
        assert!(looks_hashed(&single(&servers, "a", "b_c")));
    }

    #[test]
    fn a_tool_cannot_pose_as_the_hashed_name_of_another() {
        let hashed = single(&["s"], "s", "find.all");
        let posing = hashed.strip_prefix("mcp_s_").unwrap();
        assert_ne!(single(&["s"], "s", posing), hashed);
    }

    #[test]
    fn names_fold_over_case_hyphen_underscore_and_space() {
        for name in ["My Service", "my-service", "MY_SERVICE", "my service"] {
            assert_eq!(fold(name), "my_service");
        }
        assert_ne!(fold("my.service"), fold("my-service"));
    }

    /// Names that meet each other often: few letters, separators, odd characters, some long.
    fn name() -> impl Strategy<Value = String> {
        prop_oneof![
            4 => "[ab_]{1,4}",
            2 => "[aB.é _-]{1,5}",
            1 => "a{50,70}_?[ab.]{0,2}",
            1 => "[ab]_[a-f][0-9a-f]{7}",
        ]
    }

    fn catalogue() -> impl Strategy<Value = Catalogue> {
        let tools = prop::collection::hash_set(name(), 1..8);
        prop::collection::hash_map(name(), tools, 1..8)
    }

    pub(super) type Catalogue = HashMap<String, HashSet<String>>;

    fn names(namer: &Namer, form: Naming, servers: &Catalogue) -> Vec<(String, String, String)> {
        let tools = servers
            .iter()
            .flat_map(|(server, tools)| tools.iter().map(move |tool| (server, tool)));
        tools
            .map(|(server, tool)| {
                let name = namer.injected(form, server, tool);
                (server.clone(), tool.clone(), name)
            })
            .collect()
    }

    /// F10: every name is legal, unique and fits its server.
    pub(super) fn check_names(servers: &Catalogue) {
        let namer = Namer::new(servers.keys().map(String::as_str));
        for form in FORMS {
            let mut table = HashMap::new();
            for (server, tool, name) in names(&namer, form, servers) {
                assert!((1..=64).contains(&name.len()));
                assert!(
                    name.bytes()
                        .all(|b| b.is_ascii_alphanumeric() || b == b'_' || b == b'-')
                );
                assert!(namer.fits(form, &server, &name));
                let other = table.insert(name, (server, tool));
                assert!(other.is_none(), "{other:?}");
            }
        }
    }

    /// F10: names do not depend on the order of servers.
    pub(super) fn check_order(servers: &Catalogue) {
        let mut order: Vec<_> = servers.keys().map(String::as_str).collect();
        let one = Namer::new(order.iter().copied());
        order.sort_unstable();
        let two = Namer::new(order.iter().rev().copied());
        for form in FORMS {
            assert_eq!(names(&one, form, servers), names(&two, form, servers));
        }
    }

    /// F10: a new server renames only what falls under its prefix, another tool nothing at all.
    pub(super) fn check_new(servers: &Catalogue, new: &str) {
        let before = Namer::new(servers.keys().map(String::as_str));
        let after = Namer::new(servers.keys().map(String::as_str).chain([new]));
        for form in FORMS {
            for (server, tool, name) in names(&before, form, servers) {
                if after.injected(form, &server, &tool) != name {
                    assert!(after.fits(form, new, &name), "{server} {tool} {name}");
                }
            }
        }
    }

    proptest! {
        #[test]
        fn every_name_is_legal_unique_and_found_again(servers in catalogue()) {
            check_names(&servers);
        }

        #[test]
        fn names_do_not_depend_on_the_order_of_servers(servers in catalogue()) {
            check_order(&servers);
        }

        #[test]
        fn a_new_server_renames_only_what_falls_under_its_prefix(servers in catalogue(), new in name()) {
            prop_assume!(!servers.contains_key(&new));
            check_new(&servers, &new);
        }
    }
}
