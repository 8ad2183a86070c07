//! Floor 4: the resident process: command lines in, answer lines out.

mod dispatch;
mod events;
mod lines;
mod metrics;
mod order;
mod protocol;
mod scan;
mod sight;
mod tasks;
#[cfg(test)]
mod tests;

pub use dispatch::{Daemon, Notice};
pub use lines::{Input, Lines, Stream, claim_stdin, claim_stdout};
