//! Replaces every known secret by `***` wherever it turns up in text that leaves the process.
//!
//! A secret is known as it is and in base64, percent- and JSON-escaped form, for as long as somebody
//! holds it; when the number of known values has doubled, those that nobody holds are forgotten.

mod forms;
#[cfg(test)]
mod fuzz;
mod known;
#[cfg(test)]
mod tests;

use std::borrow::Cow;
use std::ops::Range;
use std::sync::{Arc, LazyLock, PoisonError, RwLock, RwLockReadGuard};

use regex::Regex;
use serde_json::Value;

use super::error::Failure;
use super::secret::Secret;
use known::Known;

const MASK: &str = "***";

/// Values under this many characters are left alone: they would blank ordinary words.
const SHORTEST: usize = 6;

/// Members of a failure's details that are ours: names and closed words, never a value of anybody's.
const OWN_WORDS: &[&str] = &["server_name", "phase", "outcome"];

/// The secrets in force, and the search for them. Cloning shares the set.
#[derive(Clone, Default)]
pub struct Redactor(Arc<RwLock<Known>>);

impl Redactor {
    /// Scrubs `secret` from now on: as it is, and in base64, percent- and JSON-escaped form.
    /// Values under 6 characters are left alone: they would blank ordinary words.
    /// Cheap for a value that is known already.
    pub fn learn(&self, secret: &Secret) {
        if secret.expose().chars().nth(SHORTEST - 1).is_some() {
            let mut known = self.0.write().unwrap_or_else(PoisonError::into_inner);
            known.learn(secret);
        }
    }

    /// `text` with `***` for every known secret and for the value of every `Authorization`,
    /// `X-API-Key` and `Cookie`. Borrowed where there was none.
    pub fn scrub<'a>(&self, text: &'a str) -> Cow<'a, str> {
        scrub_with(&self.known(), text)
    }

    /// Scrubs text that was cut at a limit: the beginning of a secret at the cut is taken off as well.
    pub fn scrub_cut(&self, text: &str) -> String {
        let known = self.known();
        let mut scrubbed = scrub_with(&known, text).into_owned();
        // What a cut inside a character leaves.
        let whole = scrubbed.trim_end_matches(char::REPLACEMENT_CHARACTER).len();
        let begun = known.begun_at_end(&scrubbed[..whole]);
        if begun > 0 {
            scrubbed.truncate(whole - begun);
        }
        scrubbed
    }

    /// Scrubs the message and every text in the details (not the names of members, nor
    /// `server_name`, `phase` and `outcome`, which are never secrets).
    pub fn scrub_failure(&self, mut failure: Failure) -> Failure {
        let known = self.known();
        if let Cow::Owned(message) = scrub_with(&known, &failure.message) {
            failure.message = message;
        }
        for (name, value) in &mut failure.details {
            if !OWN_WORDS.contains(&name.as_str()) {
                scrub_value(&known, value);
            }
        }
        failure
    }

    /// Scrubs every text and number in `value`, not the names of members.
    pub fn scrub_json(&self, value: &mut Value) {
        scrub_value(&self.known(), value);
    }

    fn known(&self) -> RwLockReadGuard<'_, Known> {
        self.0.read().unwrap_or_else(PoisonError::into_inner)
    }
}

fn scrub_value(known: &Known, value: &mut Value) {
    match value {
        Value::String(text) => {
            if let Cow::Owned(scrubbed) = scrub_with(known, text) {
                *text = scrubbed;
            }
        }
        Value::Number(number) => {
            if let Cow::Owned(scrubbed) = scrub_with(known, &number.to_string()) {
                *value = Value::String(scrubbed);
            }
        }
        Value::Array(items) => items.iter_mut().for_each(|item| scrub_value(known, item)),
        Value::Object(members) => members
            .values_mut()
            .for_each(|member| scrub_value(known, member)),
        Value::Null | Value::Bool(_) => {}
    }
}

fn scrub_with<'a>(known: &Known, text: &'a str) -> Cow<'a, str> {
    let mut scrubbed = Cow::Borrowed(text);
    // A mask next to what stood around it can read like another secret, and a header's value can
    // reach beyond it. Each round takes at least six bytes for three, or makes a value a mask for
    // good, so the rounds end.
    while let Some(masked) = mask_once(known, &scrubbed) {
        scrubbed = Cow::Owned(masked);
    }
    scrubbed
}

/// `None`: nothing found. Secrets and headers are looked for in the same text: neither mask may hide
/// a part of the other and leave the rest.
fn mask_once(known: &Known, text: &str) -> Option<String> {
    let mut found = known.find(text);
    found.extend(header_values(text));
    if found.is_empty() {
        return None;
    }
    found.sort_unstable_by_key(|range| range.start);
    let mut masked = String::with_capacity(text.len());
    let mut done = 0;
    for range in found {
        if range.start > done || done == 0 {
            masked.push_str(&text[done..range.start]);
            masked.push_str(MASK);
        }
        done = done.max(range.end);
    }
    masked.push_str(&text[done..]);
    Some(masked)
}

/// Credentials that say themselves what they are, known to us or not.
static HEADERS: LazyLock<Option<Regex>> = LazyLock::new(|| {
    let name =
        r#"(?i)\b(?:(?:proxy-)?authorization|x-api-key|(?:set-)?cookie)\\?"?\s*[:=]\s*\\?"?"#;
    let scheme = r#"(?:(?:bearer|basic|token|negotiate|apikey)\s+)?[^\s"'\\,;]+"#;
    let rest = r#"(?:digest\s[^\r\n"\\]+|[^\s"'\\,;=]+=[^\r\n"\\]+)"#;
    Regex::new(&format!("{name}(?P<value>{rest}|{scheme})")).ok()
});

fn header_values(text: &str) -> impl Iterator<Item = Range<usize>> {
    let headers = HEADERS.as_ref().into_iter();
    let values = headers
        .flat_map(move |headers| headers.captures_iter(text))
        .filter_map(|header| header.name("value"));
    values
        .filter(|value| value.as_str() != MASK)
        .map(|value| value.range())
}
