//! Fuzz target of the redactor (docs/fuzzing.md).

use super::tests::check_scrubbed;
use crate::model::fuzz::Choices;

const WORDS: &[&str] = &[
    "a",
    "b",
    "ab",
    "*",
    "***",
    "\u{e4}",
    "\u{1f600}",
    "/+",
    "\"",
    "\\",
    "%2F",
    " ",
    "\n",
    "=",
    "secret",
    "Bearer ",
    "Authorization: ",
    "cookie=",
];

fn text(choices: &mut Choices, most: usize) -> String {
    String::from_utf8_lossy(&choices.text(WORDS, most)).into_owned()
}

/// F8: secrets and text that hide in each other.
#[test]
fn f8_redactor() {
    bolero::check!().for_each(|bytes: &[u8]| {
        let mut choices = Choices::new(bytes);
        let mut values = choices.many(6, |choices| text(choices, 12));
        values.retain(|value| value.chars().count() >= super::SHORTEST);
        if values.is_empty() {
            values.push("secret-a".into());
        }
        let pick = |choices: &mut Choices| (choices.byte().into(), text(choices, 6));
        check_scrubbed(values, &choices.many(8, pick));
    });
}
