//! The retry budget: when much fails at once, sending everything twice would only make it worse.

use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use tokio::time::Instant;

/// What is counted: the calls and retries of so long.
const WINDOW: Duration = Duration::from_secs(10);
/// One retry for so many calls,
const CALLS: u64 = 5;
/// but these are always granted.
const LEAST: u64 = 3;
/// The window moves on in so many steps.
const STEPS: usize = 10;

/// Counts calls and grants retries: at most a fifth of the calls of the last ten seconds, at least three.
pub(super) struct Budget {
    since: Instant,
    window: Mutex<Window>,
}

#[derive(Default)]
struct Window {
    counts: [Counts; STEPS],
    /// The step that `counts[step % STEPS]` counts.
    step: u64,
}

#[derive(Clone, Copy, Default)]
struct Counts {
    calls: u64,
    retries: u64,
}

impl Budget {
    pub(super) fn new() -> Self {
        Self {
            since: Instant::now(),
            window: Mutex::default(),
        }
    }

    pub(super) fn count_call(&self) {
        self.at_present(|window| window.current().calls += 1);
    }

    /// Whether one more call may be sent again; counts it if so.
    pub(super) fn grants(&self) -> bool {
        self.at_present(|window| {
            let sum = |of: fn(&Counts) -> u64| window.counts.iter().map(of).sum::<u64>();
            let most = LEAST.max(sum(|counts| counts.calls) / CALLS);
            let granted = sum(|counts| counts.retries) < most;
            window.current().retries += u64::from(granted);
            granted
        })
    }

    fn at_present<T>(&self, act: impl FnOnce(&mut Window) -> T) -> T {
        let length = (WINDOW / STEPS as u32).as_millis();
        let step = self.since.elapsed().as_millis() / length;
        let mut window = self.window.lock().unwrap_or_else(PoisonError::into_inner);
        window.move_to(u64::try_from(step).unwrap_or(u64::MAX));
        act(&mut window)
    }
}

impl Window {
    fn current(&mut self) -> &mut Counts {
        &mut self.counts[self.step as usize % STEPS]
    }

    fn move_to(&mut self, step: u64) {
        let behind = step.saturating_sub(self.step).min(STEPS as u64);
        for _ in 0..behind {
            self.step += 1;
            *self.current() = Counts::default();
        }
        self.step = self.step.max(step);
    }
}

#[cfg(test)]
mod tests {
    use tokio::time::advance;

    use super::*;

    fn granted(budget: &Budget) -> usize {
        (0..1_000).take_while(|_| budget.grants()).count()
    }

    #[tokio::test(start_paused = true)]
    async fn a_fifth_of_the_calls_may_be_sent_again_and_always_three() {
        let budget = Budget::new();
        assert_eq!(granted(&budget), 3);
        (0..100).for_each(|_| budget.count_call());
        assert_eq!(granted(&budget), 20 - 3);
    }

    #[tokio::test(start_paused = true)]
    async fn what_is_older_than_the_window_no_longer_counts() {
        let budget = Budget::new();
        (0..100).for_each(|_| budget.count_call());
        advance(WINDOW / 2).await;
        assert_eq!(granted(&budget), 20);
        advance(WINDOW / 2).await;
        assert_eq!(
            granted(&budget),
            0,
            "the retries are younger than the calls"
        );
        advance(WINDOW / 2).await;
        assert_eq!(granted(&budget), 3);
        advance(WINDOW * 1_000).await;
        assert_eq!(granted(&budget), 3);
    }
}
