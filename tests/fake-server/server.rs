//! A scriptable MCP server for tests: behaves well by default, and badly exactly where told.
//!
//! `fake-server [--script JSON | --script-file PATH] [--http]`. Without `--http` it speaks stdio; with it, it
//! serves Streamable HTTP (or, where the script says so, HTTP+SSE) on a free port of 127.0.0.1 and
//! prints `{"port":N}` as its first line. The script is described in [`script`].

mod http;
mod journal;
mod mcp;
mod script;
mod stdio;
mod steps;
mod tools;

use std::sync::Arc;

use script::Script;

fn main() {
    let arguments = Arguments::read();
    if arguments.linger {
        return linger(arguments.setsid);
    }
    let server = Arc::new(mcp::Server::new(arguments.script));
    server.start();
    if arguments.http {
        http::serve(&server);
    } else {
        stdio::serve(&server);
    }
}

#[derive(Default)]
struct Arguments {
    script: Script,
    http: bool,
    /// Not a server: a grandchild that stays until it is killed.
    linger: bool,
    setsid: bool,
}

impl Arguments {
    fn read() -> Self {
        let mut read = Self::default();
        let mut words = std::env::args().skip(1);
        while let Some(word) = words.next() {
            match word.as_str() {
                "--script" => read.script = Script::parse(&words.next().expect("a script")),
                "--script-file" => {
                    let path = words.next().expect("the path of a script");
                    read.script = Script::parse(&std::fs::read_to_string(path).expect("a script"));
                }
                "--http" => read.http = true,
                "--linger" => read.linger = true,
                "--setsid" => read.setsid = true,
                // Whatever else a test puts on the command line is its own business.
                _ => {}
            }
        }
        read
    }
}

fn linger(setsid: bool) {
    if setsid {
        rustix::process::setsid().expect("a session of its own");
    }
    println!("lingering");
    steps::hang();
}
