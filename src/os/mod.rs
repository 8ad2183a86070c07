//! What only Linux has, and beside it the plain Unix way: the same functions in both, so that nobody
//! else asks which system this is.
//!
//! `RUSTFLAGS="--cfg plain_unix"` chooses the plain way on Linux too, to compile and try it there.

#[cfg(all(target_os = "linux", not(plain_unix)))]
mod linux;
#[cfg(all(target_os = "linux", not(plain_unix)))]
pub use linux::*;

#[cfg(not(all(target_os = "linux", not(plain_unix))))]
mod unix;
#[cfg(not(all(target_os = "linux", not(plain_unix))))]
pub use unix::*;

/// How far this kernel lets servers be kept apart.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Landlock {
    /// The kernel's version of it; 0: there is none, or it is switched off.
    pub abi: i32,
    /// A server can neither read nor signal what is not its own.
    pub is_complete: bool,
}

impl Landlock {
    const NONE: Self = Self {
        abi: 0,
        is_complete: false,
    };
}

/// A limit of the system on processes.
pub struct ProcessLimit {
    pub name: &'static str,
    /// `None`: there is no such limit.
    pub value: Option<u64>,
    /// How it is raised.
    pub advice: &'static str,
}
