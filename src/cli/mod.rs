//! Floor 5: the command line.

pub fn main() -> std::process::ExitCode {
    todo!()
}
