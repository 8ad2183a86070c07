//! The stdio transport: one message a line.

use std::io::{BufRead, Write};
use std::sync::Arc;
use std::sync::atomic::Ordering;

use serde_json::json;

use crate::mcp::{Request, Server, Wire};
use crate::steps;

struct Stdout {
    server: Arc<Server>,
}

impl Wire for Stdout {
    fn message(&self, text: &[u8]) {
        let script = &self.server.script;
        let mut line = Vec::with_capacity(text.len() + 5);
        if script.bom {
            line.extend_from_slice("\u{feff}".as_bytes());
        }
        line.extend_from_slice(text);
        line.extend_from_slice(if script.crlf { b"\r\n" } else { b"\n" });
        self.raw(&line);
    }

    fn raw(&self, bytes: &[u8]) {
        let mut stdout = std::io::stdout().lock();
        let size = if self.server.script.dribble {
            1
        } else {
            bytes.len().max(1)
        };
        for piece in bytes.chunks(size) {
            // The client may be gone: what cannot be written is nobody's loss.
            let _ = stdout.write_all(piece).and_then(|()| stdout.flush());
        }
    }
}

pub fn serve(server: &Arc<Server>) {
    let wire: Arc<dyn Wire> = Arc::new(Stdout {
        server: Arc::clone(server),
    });
    for line in &server.script.banner {
        wire.raw(format!("{line}\n").as_bytes());
    }
    play("start", server, &wire);
    let mut input = std::io::stdin().lock();
    let mut line = Vec::new();
    loop {
        line.clear();
        match input.read_until(b'\n', &mut line) {
            Ok(0) | Err(_) => break,
            Ok(_) => server.take(line.trim_ascii_end(), &wire),
        }
        if server.stopped_reading.load(Ordering::SeqCst) {
            steps::hang();
        }
    }
    server.journal.note("eof", json!({}));
    play("eof", server, &wire);
    if server.script.ignore_eof {
        steps::hang();
    }
    server.exit(0);
}

/// Steps of a moment that is no request, played to their end before anything else happens.
fn play(moment: &str, server: &Arc<Server>, wire: &Arc<dyn Wire>) {
    let Some(steps) = server.scene(moment) else {
        return;
    };
    let (server, wire, moment) = (Arc::clone(server), Arc::clone(wire), moment.to_owned());
    let player = std::thread::spawn(move || {
        steps::this_thread_may_wait();
        let request = Request {
            id: None,
            method: moment,
            params: "{}".to_owned(),
        };
        steps::run(&server, steps, request, &wire);
    });
    player.join().expect("the steps play");
}
