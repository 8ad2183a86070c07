//! Floor 4: the resident process: command lines in, answer lines out.

mod lines;
mod protocol;
mod scan;
