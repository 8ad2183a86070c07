//! Fuzz target of the names of tools (docs/fuzzing.md).

use super::tests::{Catalogue, check_names, check_new, check_order};
use crate::model::fuzz::Choices;

const WORDS: &[&str] = &[
    "a",
    "b",
    "A",
    "_",
    "__",
    "-",
    ".",
    " ",
    "\u{e9}",
    "mcp",
    "aaaaaaaaaaaaaaaaaaaa",
    "_a1234567",
    "_e7d5d1e1",
    "_20240131",
];

fn name(choices: &mut Choices) -> String {
    let name = choices.text(WORDS, 6);
    String::from_utf8_lossy(&name).into_owned()
}

/// F10: servers and tools whose names meet each other often.
#[test]
fn f10_naming() {
    bolero::check!().for_each(|bytes: &[u8]| {
        let mut choices = Choices::new(bytes);
        let server = |choices: &mut Choices| {
            let tools = choices.many(6, name);
            (name(choices), tools.into_iter().collect())
        };
        let servers: Catalogue = choices.many(6, server).into_iter().collect();
        let new = name(&mut choices);
        check_names(&servers);
        check_order(&servers);
        if !servers.contains_key(&new) {
            check_new(&servers, &new);
        }
    });
}
