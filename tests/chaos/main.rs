//! Chaos: the built daemon under load and under faults, kinds and moments chosen by a seed. After
//! every scene all that must always hold is held against it: every command has its one answer, every
//! answer is its own, nothing ran twice, no secret left its owner, no process, thread or descriptor
//! stays, and a plain call works.
//!
//! `scripts/chaos [--seed N] [--long | --measure]`.

#[path = "../ground/mod.rs"]
mod ground;

mod daemon;
mod dice;
mod ends;
mod faults;
mod journals;
mod ledger;
mod measure;
mod processes;
mod secrets;
mod servers;
mod stage;
mod tally;

use std::process::ExitCode;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use daemon::PATIENCE;
use dice::Dice;
use ends::{DRAIN, ENDS, End};
use faults::{FAULTS, Fault};
use stage::{Stage, wait_until};
use tally::{Tally, Wrong};

/// What a run must reach, and may take.
struct Bar {
    commands: usize,
    faults: usize,
    time: Duration,
}

const SHORT: Bar = Bar {
    commands: 20_000,
    faults: 300,
    time: Duration::from_secs(180),
};
const LONG: Bar = Bar {
    commands: 1_000_000,
    faults: 10_000,
    time: Duration::from_secs(3600),
};
const KINDS: usize = 20;

/// Scenes a round, and kinds of fault a scene.
const SCENES: usize = 3;
const KINDS_AT_ONCE: usize = 4;

fn main() -> ExitCode {
    let mut seed = None;
    let mut bar = SHORT;
    let mut measures = false;
    let mut words = std::env::args().skip(1);
    while let Some(word) = words.next() {
        match word.as_str() {
            "--seed" => seed = words.next().and_then(|number| number.parse().ok()),
            "--long" => bar = LONG,
            "--measure" => measures = true,
            _ => {
                eprintln!("usage: scripts/chaos [--seed N] [--long] [--measure] [--release]");
                return ExitCode::from(64);
            }
        }
    }
    let seed = seed.unwrap_or_else(|| u64::from(std::process::id()) ^ nanoseconds());
    // Whatever is left behind falls to us, and is seen.
    rustix::process::set_child_subreaper(Some(rustix::process::getpid())).expect("a subreaper");
    let tally = Arc::new(Tally::default());
    if measures {
        measure::all(&tally);
        println!("{tally}");
        return if tally.is_clean() {
            ExitCode::SUCCESS
        } else {
            ExitCode::FAILURE
        };
    }
    println!("seed {seed}");
    let start = Instant::now();
    run(seed, &bar, &tally, start);
    println!("{tally}");
    println!("seed {seed}, {:.0} s", start.elapsed().as_secs_f64());
    if tally.commands() < bar.commands || tally.faults() < bar.faults || tally.kinds() < KINDS {
        println!("too little was tried for this to count");
        return ExitCode::FAILURE;
    }
    if tally.is_clean() {
        ExitCode::SUCCESS
    } else {
        ExitCode::FAILURE
    }
}

fn nanoseconds() -> u64 {
    let now = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH);
    now.map_or(0, |now| u64::from(now.subsec_nanos()) << 16)
}

/// Rounds, one daemon each, until enough was tried. Every kind of fault has its turn, and every end.
fn run(seed: u64, bar: &Bar, tally: &Arc<Tally>, start: Instant) {
    let mut dice = Dice::new(seed);
    let mut faults: Vec<&Fault> = vec![];
    let mut ends: Vec<&End> = vec![];
    let mut round = 0;
    let enough = |round: usize| {
        round >= ENDS.len() && tally.commands() >= bar.commands && tally.faults() >= bar.faults
    };
    while !enough(round) && start.elapsed() < bar.time.mul_f64(0.8) {
        round += 1;
        if ends.is_empty() {
            ends.extend(ENDS);
            dice.shuffle(&mut ends);
        }
        let end = ends.pop().expect("filled");
        let place = format!("seed {seed}, round {round}");
        play_round(&place, end, &mut faults, &mut dice, tally);
        println!(
            "round {round}: {} commands, {} faults, {:.0} s",
            tally.commands(),
            tally.faults(),
            start.elapsed().as_secs_f64()
        );
    }
}

fn play_round(
    place: &str,
    end: &End,
    deck: &mut Vec<&'static Fault>,
    dice: &mut Dice,
    tally: &Arc<Tally>,
) {
    let drain = format!("{}s", DRAIN.as_secs());
    let level = dice.word(&["warn", "info", "debug"]);
    let idle = dice.word(&["10m", "300ms"]);
    let settings = [
        ("daemon_drain_timeout", drain.as_str()),
        ("log_level", level),
        ("pool_idle_timeout", idle),
    ];
    let place = format!("{place} (log {level}, idle {idle})");
    tally.scene(format!("{place}, warming up"));
    let stage = Stage::new(tally, &settings);
    stage.warm_up();
    stage.settle();
    for scene in 1..=SCENES {
        let kinds: Vec<&Fault> = (0..KINDS_AT_ONCE).map(|_| draw(deck, dice)).collect();
        let names: Vec<&str> = kinds.iter().map(|fault| fault.name).collect();
        tally.scene(format!("{place}, scene {scene}: {}", names.join("; ")));
        play_scene(&stage, &kinds, dice);
        stage.settle();
    }
    tally.scene(format!("{place}, end: {}", end.name));
    tally.fault(end.name);
    (end.meet)(&stage, dice);
    stage.check_nothing_left(Duration::from_secs(2));
}

fn draw(deck: &mut Vec<&'static Fault>, dice: &mut Dice) -> &'static Fault {
    if deck.is_empty() {
        deck.extend(FAULTS);
        dice.shuffle(deck);
    }
    deck.pop().expect("filled")
}

/// Faults of some kinds at moments of the load: when so many of its commands have been sent. Kinds
/// go on side by side.
fn play_scene(stage: &Stage, kinds: &[&Fault], dice: &mut Dice) {
    let commands = 700 + dice.below(300);
    let (sent, mut load) = (AtomicUsize::new(0), dice.fork());
    std::thread::scope(|scope| {
        scope.spawn(|| stage.load(&mut load, commands, &sent));
        for fault in kinds {
            let mut dice = dice.fork();
            let mut moments: Vec<usize> =
                (0..fault.times()).map(|_| dice.below(commands)).collect();
            moments.sort_unstable();
            let sent = &sent;
            scope.spawn(move || {
                for moment in moments {
                    wait_until(PATIENCE, || sent.load(Ordering::SeqCst) >= moment);
                    fault.inject(stage, &mut dice);
                }
            });
        }
    });
    if !stage.daemon.ledger.wait_below(64, PATIENCE) {
        stage.tally.blame(Wrong::Other, "the load stands still");
    }
}
