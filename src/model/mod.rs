//! Floor 0: the words of the house. No I/O, no async.

pub mod caller;
pub mod deadline;
pub mod definition;
pub mod error;
pub mod event;
pub mod form;
#[cfg(test)]
pub(crate) mod fuzz;
pub mod json;
pub mod naming;
pub mod redact;
pub mod resolve;
pub mod row;
pub mod secret;
pub mod settings;
pub mod template;
pub mod trace;
pub mod unseen;
