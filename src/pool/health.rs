//! How a key's connects have gone lately, and so when the next one may begin. No I/O, no clock.
//!
//! - A failed connect is followed by a pause: a random part of 0.5 s, doubled with every further
//!   failure, at most 60 s. Callers are refused meanwhile.
//! - A session that dies young is paced in the same way, one step behind: the first death costs
//!   nothing. Callers wait out that pause, for the server does start.
//! - Five failures or early deaths within three minutes open the breaker: 30 s, doubled every time
//!   the one connect allowed after it fails, at most 10 min.
//! - A session that lived for 60 s wipes the slate.

use std::collections::VecDeque;
use std::time::Duration;

use tokio::time::Instant;

use crate::model::error::{ErrorCode, Failure};

const BACKOFF: Duration = Duration::from_millis(500);
const MAX_BACKOFF: Duration = Duration::from_secs(60);
const TRIP_AFTER: usize = 5;
const TRIP_WINDOW: Duration = Duration::from_secs(180);
const OPEN: Duration = Duration::from_secs(30);
const MAX_OPEN: Duration = Duration::from_secs(600);
/// A session this old has shown that the server works.
const STEADY: Duration = Duration::from_secs(60);
/// How long a failure is remembered after its pause.
const MEMORY: Duration = MAX_OPEN;

#[derive(Default)]
pub(super) struct Health {
    /// The last failures within the window, at most `TRIP_AFTER`.
    recent: VecDeque<Instant>,
    streak: u32,
    opened: u32,
    pause: Option<Pause>,
    last: Option<Failure>,
}

#[derive(Clone, Copy)]
struct Pause {
    until: Instant,
    /// Callers wait it out instead of being refused.
    patient: bool,
}

/// Whether a connect may begin.
pub(super) enum Verdict {
    Go,
    Wait(Instant),
    Refuse(Failure),
}

impl Health {
    /// A connect failed. `fraction`: the random part of the pause, 0 to 1.
    pub(super) fn failed(&mut self, now: Instant, failure: Failure, fraction: f64) {
        self.strike(now, failure);
        let delay = self
            .open_for()
            .unwrap_or_else(|| backoff(self.streak, fraction));
        self.pause = Some(Pause {
            until: now + delay,
            patient: false,
        });
    }

    /// A session died after it had lived for `age`.
    pub(super) fn died(&mut self, now: Instant, age: Duration, failure: Failure, fraction: f64) {
        self.lived(age);
        if age >= STEADY {
            self.last = Some(failure);
            return;
        }
        self.strike(now, failure);
        let open = self.open_for();
        let delay = open.unwrap_or_else(|| backoff(self.streak - 1, fraction));
        self.pause = Some(Pause {
            until: now + delay,
            patient: open.is_none(),
        });
    }

    /// A session has ended without fault.
    pub(super) fn lived(&mut self, age: Duration) {
        if age >= STEADY {
            *self = Self::default();
        }
    }

    pub(super) fn connected(&mut self) {
        self.pause = None;
        self.last = None;
    }

    pub(super) fn verdict(&self, now: Instant, server_name: &str) -> Verdict {
        match self.pause {
            Some(pause) if pause.until > now && pause.patient => Verdict::Wait(pause.until),
            Some(pause) if pause.until > now => {
                Verdict::Refuse(self.refusal(pause.until - now, server_name))
            }
            _ => Verdict::Go,
        }
    }

    pub(super) fn is_cooling(&self, now: Instant) -> bool {
        self.pause.is_some_and(|pause| pause.until > now)
    }

    pub(super) fn last(&self) -> Option<&Failure> {
        self.last.as_ref()
    }

    /// Whether nothing is lost when this is dropped.
    pub(super) fn is_forgettable(&self, now: Instant) -> bool {
        match (self.pause, self.recent.back()) {
            (Some(pause), _) => pause.until + MEMORY <= now,
            (None, Some(&failed)) => failed + MEMORY <= now,
            (None, None) => self.last.is_none(),
        }
    }

    fn strike(&mut self, now: Instant, failure: Failure) {
        self.last = Some(failure);
        self.streak = self.streak.saturating_add(1);
        self.recent.push_back(now);
        while self.recent.len() > TRIP_AFTER || self.recent[0] + TRIP_WINDOW <= now {
            self.recent.pop_front();
        }
        if self.opened > 0 || self.recent.len() == TRIP_AFTER {
            self.opened = self.opened.saturating_add(1);
        }
    }

    /// For how long the breaker is open, if it is.
    fn open_for(&self) -> Option<Duration> {
        (self.opened > 0).then(|| doubled(OPEN, self.opened - 1, MAX_OPEN))
    }

    fn refusal(&self, wait: Duration, server_name: &str) -> Failure {
        let cause = self.last.as_ref();
        let message = format!(
            "server `{server_name}` could not be started and is not tried again for {:.1} s{}",
            wait.as_secs_f64(),
            cause.map_or(String::new(), |last| format!("; last: {}", last.message)),
        );
        let mut failure = Failure::new(ErrorCode::CircuitOpen, message)
            .server(server_name)
            .retry_after(wait);
        if let Some(last) = cause {
            failure = failure.with("last_error_code", last.code.as_str());
            for name in ["phase", "stderr", "exit_status", "signal"] {
                if let Some(value) = last.details.get(name) {
                    failure = failure.with(name, value.clone());
                }
            }
        }
        failure
    }
}

/// The pause after `streak` failures in a row.
fn backoff(streak: u32, fraction: f64) -> Duration {
    match streak.checked_sub(1) {
        Some(doublings) => {
            doubled(BACKOFF, doublings, MAX_BACKOFF).mul_f64(fraction.clamp(0.0, 1.0))
        }
        None => Duration::ZERO,
    }
}

fn doubled(first: Duration, doublings: u32, most: Duration) -> Duration {
    first
        .saturating_mul(2_u32.saturating_pow(doublings))
        .min(most)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn failure() -> Failure {
        Failure::new(ErrorCode::ConnectFailed, "exit status 1")
    }

    /// The pauses after each of `count` failed connects, each begun as soon as it may.
    fn pauses(count: usize, fraction: f64) -> Vec<f64> {
        let mut now = Instant::now();
        let mut health = Health::default();
        let pause = |_| {
            health.failed(now, failure(), fraction);
            let until = health.pause.map_or(now, |pause| pause.until);
            let pause = until - now;
            now = until;
            pause.as_secs_f64()
        };
        (0..count).map(pause).collect()
    }

    #[test]
    fn pauses_double_until_the_breaker_opens_and_doubles_too() {
        let expected = [
            0.5, 1.0, 2.0, 4.0, 30.0, 60.0, 120.0, 240.0, 480.0, 600.0, 600.0,
        ];
        assert_eq!(pauses(11, 1.0), expected);
    }

    #[test]
    fn a_pause_is_a_random_part_of_its_bound() {
        assert_eq!(pauses(3, 0.5), [0.25, 0.5, 1.0]);
        assert_eq!(pauses(1, 0.0), [0.0]);
    }

    #[test]
    fn failures_spread_over_more_than_the_window_do_not_open_the_breaker() {
        let mut health = Health::default();
        let start = Instant::now();
        for n in 0..20 {
            health.failed(start + TRIP_WINDOW / 4 * n, failure(), 1.0);
        }
        assert_eq!(health.opened, 0);
        assert_eq!(backoff(health.streak, 1.0), MAX_BACKOFF);
    }

    #[test]
    fn a_refusal_holds_the_last_cause_and_the_time_of_the_next_try() {
        let now = Instant::now();
        let mut health = Health::default();
        health.failed(now, failure().with("exit_status", 1), 1.0);
        let Verdict::Refuse(refusal) = health.verdict(now, "books") else {
            panic!("not refused");
        };
        assert_eq!(refusal.code, ErrorCode::CircuitOpen);
        assert!(refusal.message.contains("`books`"), "{refusal}");
        assert!(refusal.message.contains("exit status 1"), "{refusal}");
        assert_eq!(refusal.details["retry_after_ms"], 500);
        assert_eq!(refusal.details["exit_status"], 1);
        assert_eq!(refusal.details["last_error_code"], "connect_failed");
        let later = now + Duration::from_millis(500);
        assert!(matches!(health.verdict(later, "books"), Verdict::Go));
    }

    #[test]
    fn the_first_early_death_costs_nothing_and_the_next_are_waited_out() {
        let now = Instant::now();
        let mut health = Health::default();
        let second = Duration::from_secs(1);
        health.died(now, second, failure(), 1.0);
        assert!(matches!(health.verdict(now, "books"), Verdict::Go));
        health.died(now, second, failure(), 1.0);
        assert!(
            matches!(health.verdict(now, "books"), Verdict::Wait(until) if until == now + BACKOFF)
        );
        for _ in 0..3 {
            health.died(now, second, failure(), 1.0);
        }
        assert!(matches!(health.verdict(now, "books"), Verdict::Refuse(_)));
    }

    #[test]
    fn a_session_of_sixty_seconds_wipes_the_slate() {
        let now = Instant::now();
        let mut health = Health::default();
        for _ in 0..7 {
            health.failed(now, failure(), 1.0);
        }
        health.connected();
        health.died(now, STEADY, failure(), 1.0);
        assert!(matches!(health.verdict(now, "books"), Verdict::Go));
        health.failed(now, failure(), 1.0);
        assert!(matches!(
            health.verdict(now + BACKOFF, "books"),
            Verdict::Go
        ));
    }
}
