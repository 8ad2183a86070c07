//! The known secrets and the searches over them.

use std::collections::HashMap;
use std::hash::{BuildHasher, RandomState};
use std::ops::Range;
use std::sync::{Arc, Weak};

use aho_corasick::AhoCorasick;
use zeroize::Zeroizing;

use super::forms::forms;
use crate::model::secret::Secret;

/// A keyed hash of a secret, wide enough that two secrets never share one.
type Key = [u64; 2];
type Held = Weak<Zeroizing<String>>;

#[derive(Default)]
pub struct Layers {
    hashers: [RandomState; 2],
    holders: HashMap<Key, Holders>,
    /// Known, but in no search yet.
    recent: Vec<Key>,
    /// From large to small.
    layers: Vec<Arc<Search>>,
}

/// Everyone who holds a secret of this value; it is in force while one of them lives.
#[derive(Default)]
struct Holders {
    weak: Vec<Held>,
    /// Length at which the dead are thrown out next, so that doing so costs nothing on the whole.
    sweep_at: usize,
}

impl Holders {
    fn add(&mut self, held: Held) {
        if self.weak.last().is_some_and(|last| last.ptr_eq(&held)) {
            return;
        }
        if self.weak.len() >= self.sweep_at {
            self.weak.retain(|held| held.strong_count() > 0);
            self.sweep_at = 2 * self.weak.len() + 2;
        }
        self.weak.push(held);
    }

    fn value(&self) -> Option<Arc<Zeroizing<String>>> {
        self.weak.iter().rev().find_map(Weak::upgrade)
    }
}

impl Layers {
    pub fn learn(&mut self, secret: &Secret) {
        let value = secret.expose();
        let key = [0, 1].map(|n: usize| self.hashers[n].hash_one(value));
        let holders = self.holders.entry(key).or_insert_with(|| {
            self.recent.push(key);
            Holders::default()
        });
        holders.add(secret.downgrade());
    }

    /// The searches, if they cover every known secret.
    pub fn ready(&self) -> Option<Vec<Arc<Search>>> {
        self.recent.is_empty().then(|| self.layers.clone())
    }

    /// Brings the searches up to date.
    pub fn build(&mut self) -> Vec<Arc<Search>> {
        let mut keys = std::mem::take(&mut self.recent);
        while let Some(last) = self.layers.last()
            && !keys.is_empty()
            && last.keys.len() < 2 * keys.len()
        {
            keys.extend_from_slice(&last.keys);
            self.layers.pop();
        }
        let mut living = Vec::with_capacity(keys.len());
        for key in keys {
            match self.holders.get(&key).and_then(Holders::value) {
                Some(value) => living.push((key, value)),
                None => {
                    self.holders.remove(&key);
                }
            }
        }
        if !living.is_empty() {
            self.layers.push(Arc::new(Search::new(&living)));
        }
        self.layers.clone()
    }

    #[cfg(test)]
    pub fn sizes(&self) -> (usize, Vec<usize>) {
        let sizes = self.layers.iter().map(|layer| layer.keys.len());
        (self.holders.len(), sizes.collect())
    }
}

/// One layer: a search for some of the secrets in all their forms.
pub struct Search {
    keys: Vec<Key>,
    automaton: Option<AhoCorasick>,
    /// Sorted, for the beginnings at a cut.
    forms: Vec<Zeroizing<String>>,
    longest: usize,
}

impl Search {
    fn new(secrets: &[(Key, Arc<Zeroizing<String>>)]) -> Self {
        let mut forms: Vec<_> = secrets.iter().flat_map(|(_, value)| forms(value)).collect();
        forms.sort_unstable_by(|one, other| one.as_str().cmp(other));
        forms.dedup();
        let automaton = AhoCorasick::new(forms.iter().map(|form| form.as_bytes()));
        Self {
            keys: secrets.iter().map(|(key, _)| *key).collect(),
            automaton: automaton.ok(),
            longest: forms.iter().map(|form| form.len()).max().unwrap_or(0),
            forms,
        }
    }

    /// Where secrets stand, overlapping ones too: of two that share their middle nothing is left.
    /// Always whole characters, for a form begins and ends with one.
    pub fn find(&self, text: &str) -> Vec<Range<usize>> {
        match &self.automaton {
            Some(automaton) => automaton
                .find_overlapping_iter(text)
                .map(|found| found.range())
                .collect(),
            // Too many secrets for one automaton: slow, but nothing is let through.
            None => self.find_one_by_one(text),
        }
    }

    fn find_one_by_one(&self, text: &str) -> Vec<Range<usize>> {
        let found = self.forms.iter().flat_map(|form| {
            text.match_indices(form.as_str())
                .map(|(start, found)| start..start + found.len())
        });
        found.collect()
    }

    /// The length of the longest end of `text` that begins a form.
    pub fn begun_at_end(&self, text: &str) -> usize {
        let from = text.len().saturating_sub(self.longest);
        let ends = text[text.ceil_char_boundary(from)..].char_indices();
        let ends = ends.map(|(start, _)| &text[text.ceil_char_boundary(from) + start..]);
        let mut begun = ends.filter(|end| self.begins_a_form(end));
        begun.next().map_or(0, str::len)
    }

    fn begins_a_form(&self, end: &str) -> bool {
        let next = self.forms.partition_point(|form| form.as_str() < end);
        self.forms
            .get(next)
            .is_some_and(|form| form.starts_with(end))
    }
}
