//! Floor 5: the command line.

mod call;
mod credential;
mod demo_server;
mod demo_tools;
mod oneshot;
mod server;
mod servers;
mod tools;
mod transcript;

pub fn main() -> std::process::ExitCode {
    todo!()
}
