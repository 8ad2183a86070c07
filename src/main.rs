//! `mcp-client`: a resident MCP client for agent hosts.
//!
//! Floors, top to bottom: [`cli`], [`daemon`], [`actions`], then [`pool`], [`catalog`] and
//! [`directory`], then [`mcp`] and [`config_api`], then [`model`] and [`os`]. A file imports only from floors
//! below its own; see ARCHITECTURE.md.

mod actions;
mod catalog;
mod cli;
mod config_api;
mod daemon;
mod directory;
mod mcp;
mod model;
mod os;
mod pool;

fn main() -> std::process::ExitCode {
    let mut words = std::env::args_os().skip(1);
    match words.next() {
        Some(word) if word == mcp::SHIM => mcp::become_server(words),
        _ => cli::main(),
    }
}
