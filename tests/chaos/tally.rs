//! What was done and what came of it, over a whole run.

use std::collections::BTreeMap;
use std::fmt;
use std::sync::Mutex;
use std::sync::atomic::{AtomicUsize, Ordering};

/// How a promise can be broken.
#[derive(Clone, Copy, Debug, Eq, Ord, PartialEq, PartialOrd)]
pub enum Wrong {
    /// A command without an answer, or a success of something that never ran.
    Lost,
    /// A second answer, or a call that ran twice.
    Doubled,
    /// An answer, or a credential, of somebody else.
    Misrouted,
    /// A secret outside its owner's server.
    Leaked,
    /// A process that outlives what it was started for.
    Orphan,
    /// Anything else that must not be.
    Other,
}

#[derive(Default)]
pub struct Tally {
    pub commands: AtomicUsize,
    pub failures: AtomicUsize,
    faults: Mutex<BTreeMap<&'static str, usize>>,
    wrongs: Mutex<BTreeMap<Wrong, usize>>,
    /// What is being done, said with every wrong.
    scene: Mutex<String>,
}

/// So many wrongs are told in full.
const TOLD: usize = 40;

impl Tally {
    pub fn scene(&self, scene: String) {
        *self.scene.lock().expect("unpoisoned") = scene;
    }

    pub fn fault(&self, name: &'static str) {
        *self
            .faults
            .lock()
            .expect("unpoisoned")
            .entry(name)
            .or_default() += 1;
    }

    pub fn blame(&self, wrong: Wrong, what: impl fmt::Display) {
        let mut wrongs = self.wrongs.lock().expect("unpoisoned");
        *wrongs.entry(wrong).or_default() += 1;
        if wrongs.values().sum::<usize>() <= TOLD {
            let mut what = what.to_string();
            if let Some((cut, _)) = what.char_indices().nth(1500) {
                what.truncate(cut);
            }
            eprintln!(
                "{wrong:?} in {}:\n    {what}",
                self.scene.lock().expect("unpoisoned")
            );
        }
    }

    pub fn count(&self, wrong: Wrong) -> usize {
        let wrongs = self.wrongs.lock().expect("unpoisoned");
        wrongs.get(&wrong).copied().unwrap_or_default()
    }

    pub fn is_clean(&self) -> bool {
        self.wrongs.lock().expect("unpoisoned").is_empty()
    }

    pub fn faults(&self) -> usize {
        self.faults.lock().expect("unpoisoned").values().sum()
    }

    pub fn kinds(&self) -> usize {
        self.faults.lock().expect("unpoisoned").len()
    }

    pub fn commands(&self) -> usize {
        self.commands.load(Ordering::Relaxed)
    }
}

impl fmt::Display for Tally {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (name, times) in &*self.faults.lock().expect("unpoisoned") {
            writeln!(f, "  {times:>5} {name}")?;
        }
        let failures = self.failures.load(Ordering::Relaxed);
        writeln!(
            f,
            "{} commands ({failures} of them answered with a failure), {} faults of {} kinds",
            self.commands(),
            self.faults(),
            self.kinds()
        )?;
        if self.count(Wrong::Other) > 0 {
            writeln!(f, "{} other promises broken", self.count(Wrong::Other))?;
        }
        write!(
            f,
            "lost {}, doubled {}, misrouted {}, leaked {}, orphans {}",
            self.count(Wrong::Lost),
            self.count(Wrong::Doubled),
            self.count(Wrong::Misrouted),
            self.count(Wrong::Leaked),
            self.count(Wrong::Orphan)
        )
    }
}
