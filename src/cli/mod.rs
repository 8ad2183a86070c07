//! Floor 5: the command line.

mod call;
mod demo_server;
mod demo_tools;
mod oneshot;
mod servers;
mod tools;
mod transcript;

pub fn main() -> std::process::ExitCode {
    todo!()
}
