//! Canaries: secrets that say whose they are, `canary-USER-SERVER-NUMBER`. Wherever one turns up, it
//! tells whether it may be there.

use std::collections::HashMap;
use std::sync::Mutex;
use std::time::Instant;

const HEAD: &str = "canary-";

/// The access token of a user: for the config API, and nobody else.
pub fn token(user: &str) -> String {
    format!("{HEAD}{user}-token-0")
}

/// A canary found in a text.
#[derive(Debug)]
pub struct Canary<'a> {
    pub user: &'a str,
    pub server: &'a str,
}

/// Every canary in a text.
pub fn canaries(text: &str) -> impl Iterator<Item = Canary<'_>> {
    text.match_indices(HEAD).map(|(start, _)| {
        let mut words = text[start + HEAD.len()..].split(|c: char| !c.is_ascii_alphanumeric());
        Canary {
            user: words.next().unwrap_or_default(),
            server: words.next().unwrap_or_default(),
        }
    })
}

/// The secrets handed out: what a user's secret for a server was, and until when.
#[derive(Default)]
pub struct Vault(Mutex<HashMap<Owner, Vec<(String, Instant)>>>);

/// A user, and the server the secret is for.
type Owner = (String, String);

impl Vault {
    /// A new secret, in force from now on.
    pub fn renew(&self, user: &str, server: &str) -> String {
        let mut all = self.0.lock().expect("unpoisoned");
        let secrets = all.entry((user.to_owned(), server.to_owned())).or_default();
        let secret = format!("{HEAD}{user}-{server}-{}", secrets.len());
        secrets.push((secret.clone(), Instant::now()));
        secret
    }

    /// Whether `secret` is the user's own and was in force at `since` or came later.
    pub fn may_run(&self, user: &str, server: &str, secret: &str, since: Instant) -> bool {
        let all = self.0.lock().expect("unpoisoned");
        let Some(secrets) = all.get(&(user.to_owned(), server.to_owned())) else {
            return secret.is_empty();
        };
        let Some(at) = secrets.iter().position(|(known, _)| known == secret) else {
            return false;
        };
        secrets
            .get(at + 1)
            .is_none_or(|(_, replaced)| *replaced >= since)
    }
}
