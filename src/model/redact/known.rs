//! The known secrets in all their forms, ordered so that text is searched without building anything.

use std::borrow::Borrow;
use std::cmp::Ordering;
use std::collections::{BTreeSet, HashMap};
use std::hash::{BuildHasher, RandomState};
use std::ops::{Bound, Range};
use std::sync::{Arc, Weak};

use zeroize::Zeroizing;

use super::SHORTEST;
use super::forms::forms;
use crate::model::secret::Secret;

/// A keyed hash of a secret, wide enough that two secrets never share one.
type Key = [u64; 2];
type Held = Weak<Zeroizing<String>>;

/// A few known values are not worth a sweep.
const FEW: usize = 64;

#[derive(Default)]
pub struct Known {
    hashers: [RandomState; 2],
    holders: HashMap<Key, Holders>,
    forms: BTreeSet<Form>,
    begins: Begins,
    /// Length of the longest form.
    longest: usize,
    /// Number of values at which those without a holder are thrown out next.
    sweep_at: usize,
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

impl Known {
    pub fn learn(&mut self, secret: &Secret) {
        let value = secret.expose();
        let key = [0, 1].map(|n: usize| self.hashers[n].hash_one(value));
        let is_new = !self.holders.contains_key(&key);
        let holders = self.holders.entry(key).or_default();
        holders.add(secret.downgrade());
        if is_new {
            self.add_forms(value);
            if self.holders.len() > self.sweep_at.max(FEW) {
                self.forget_the_dead();
            }
        }
    }

    fn add_forms(&mut self, value: &str) {
        let forms = forms(value);
        let count = self.forms.len() + forms.len();
        if self.begins.is_small_for(count) {
            self.begins = Begins::for_many(count);
            self.forms.iter().for_each(|form| self.begins.add(form));
        }
        for form in forms.into_iter().map(Form) {
            self.longest = self.longest.max(form.bytes().len());
            self.begins.add(&form);
            self.forms.insert(form);
        }
    }

    /// What a form was made of is gone with its secret: the living ones are learned anew.
    fn forget_the_dead(&mut self) {
        self.holders.retain(|_, holders| holders.value().is_some());
        self.forms.clear();
        (self.begins, self.longest) = (Begins::default(), 0);
        let living: Vec<_> = self.holders.values().filter_map(Holders::value).collect();
        living.iter().for_each(|value| self.add_forms(value));
        self.sweep_at = 2 * self.holders.len();
    }

    /// Where secrets stand, in order, overlapping ones too: of two that share their middle nothing is
    /// left. Always whole characters, for a form begins and ends with one.
    pub fn find(&self, text: &str) -> Vec<Range<usize>> {
        let bytes = text.as_bytes();
        let starts = self.begins.find(bytes);
        let found = starts.filter_map(|start| {
            let length = self.longest_at(&bytes[start..])?;
            Some(start..start + length)
        });
        found.collect()
    }

    /// The length of the longest form `text` begins with.
    fn longest_at(&self, text: &[u8]) -> Option<usize> {
        let mut end = text.len().min(self.longest);
        loop {
            let upto = (Bound::Unbounded, Bound::Included(&text[..end]));
            let form = self.forms.range::<[u8], _>(upto).next_back()?.bytes();
            let same = form
                .iter()
                .zip(text)
                .take_while(|(one, other)| one == other);
            let same = same.count();
            if same == form.len() {
                return Some(same);
            }
            // A longer beginning of the text than they share would stand behind this form, and nothing does.
            if same < SHORTEST {
                return None;
            }
            end = same;
        }
    }

    /// The length of the longest end of `text` that begins a form.
    pub fn begun_at_end(&self, text: &str) -> usize {
        let from = text.ceil_char_boundary(text.len().saturating_sub(self.longest));
        let mut ends = text[from..]
            .char_indices()
            .map(|(at, _)| &text[from + at..]);
        let begins_a_form = |end: &&str| {
            let after = (Bound::Included(end.as_bytes()), Bound::Unbounded);
            let next = self.forms.range::<[u8], _>(after).next();
            next.is_some_and(|form| form.bytes().starts_with(end.as_bytes()))
        };
        ends.find(begins_a_form).map_or(0, str::len)
    }

    #[cfg(test)]
    pub fn count(&self) -> usize {
        self.holders.len()
    }
}

/// A form, ordered and looked up by its bytes.
struct Form(Zeroizing<String>);

impl Form {
    fn bytes(&self) -> &[u8] {
        self.0.as_bytes()
    }
}

impl Borrow<[u8]> for Form {
    fn borrow(&self) -> &[u8] {
        self.bytes()
    }
}

impl PartialEq for Form {
    fn eq(&self, other: &Self) -> bool {
        self.bytes() == other.bytes()
    }
}

impl Eq for Form {}

impl PartialOrd for Form {
    fn partial_cmp(&self, other: &Self) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}

impl Ord for Form {
    fn cmp(&self, other: &Self) -> Ordering {
        self.bytes().cmp(other.bytes())
    }
}

/// Tells at once of most places in a text that no form begins there: a bit for a hash of the first
/// [`SHORTEST`] bytes of every form, of which there are so many that few are set.
#[derive(Default)]
struct Begins(Vec<u64>);

impl Begins {
    const BITS_PER_FORM: usize = 32;

    fn for_many(forms: usize) -> Self {
        let bits = (2 * forms * Self::BITS_PER_FORM).next_power_of_two();
        Self(vec![0; bits.max(1024) / 64])
    }

    fn is_small_for(&self, forms: usize) -> bool {
        self.0.len() * 64 < forms * Self::BITS_PER_FORM
    }

    fn add(&mut self, form: &Form) {
        let first = form.bytes().iter().take(SHORTEST);
        let (word, bit) = self.place(first.fold(0, |window, byte| next(window, *byte)));
        self.0[word] |= bit;
    }

    /// Where a form may begin.
    fn find(&self, text: &[u8]) -> impl Iterator<Item = usize> {
        let windows = text.iter().scan(0, |window, byte| {
            *window = next(*window, *byte);
            Some(*window)
        });
        let text_can_hold_one = if self.0.is_empty() { 0 } else { text.len() };
        let whole = windows
            .take(text_can_hold_one)
            .skip(SHORTEST - 1)
            .enumerate();
        whole.filter_map(|(start, window)| {
            let (word, bit) = self.place(window);
            (self.0[word] & bit != 0).then_some(start)
        })
    }

    fn place(&self, window: u64) -> (usize, u64) {
        let hash = window.wrapping_mul(0x9E37_79B9_7F4A_7C15) >> 20;
        let bit = hash as usize & (self.0.len() * 64 - 1);
        (bit / 64, 1 << (bit % 64))
    }
}

/// The last [`SHORTEST`] bytes as a number.
fn next(window: u64, byte: u8) -> u64 {
    ((window << 8) | u64::from(byte)) & ((1 << (8 * SHORTEST)) - 1)
}
