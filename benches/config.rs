//! What a snapshot costs with 1,000 users who have credentials for 20 servers each: from the embedded
//! store through the daemon, and from a config server on each database.
//!
//! `scripts/bench config` runs it in release mode.

#[path = "../tests/databases/mod.rs"]
mod databases;
#[path = "../tests/ground/mod.rs"]
mod ground;

use std::io::{BufRead, BufReader, Read, Write};
use std::net::TcpStream;
use std::time::{Duration, Instant};

use databases::{Kind, TestDatabase};
use ground::fleet::{ConfigServer, on_store};
use ground::{Daemon, Ground};
use serde_json::{Value, json};

const USERS: usize = 1_000;
const SERVERS: usize = 20;

fn main() {
    if cfg!(debug_assertions) {
        println!("(a debug build: only a trial, the figures mean nothing)");
    }
    println!(
        "{:<44} {:>9} {:>9} {:>9}",
        "", "p50 ms", "p99 ms", "aim (p99)"
    );
    for database in TestDatabase::of_each_kind() {
        let ground = Ground::new();
        let token = store(&ground, &database, &["token", "add", "bench"], "");
        fill(&ground, &database);
        if database.kind == Kind::Sqlite {
            embedded(&ground, &database);
        }
        served(&ground, &database, &token);
    }
}

fn store(ground: &Ground, database: &TestDatabase, words: &[&str], input: &str) -> String {
    let mut command = on_store(ground.embedded_command(), &database.url);
    command.args(words);
    ground.run(command, input).trim().to_owned()
}

/// 20 servers by the command line, and a row for each user and server.
fn fill(ground: &Ground, database: &TestDatabase) {
    for at in 0..SERVERS {
        let row = json!({
            "name": format!("server-{at}"), "command": "npx", "args": ["-y", format!("server-{at}@1.2.3")],
            "env_template": {"KEY": "${user.KEY}"}, "requires_credentials": true,
            "credential_fields": [{"name": "KEY", "label": "API key"}],
            "description": "A server as they are in the field, with a sentence on what it is for.",
        });
        store(
            ground,
            database,
            &["server", "add", "--json", "-"],
            &row.to_string(),
        );
    }
    let listed = store(ground, database, &["server", "list", "--json"], "");
    let listed: Value = serde_json::from_str(&listed).expect("JSON");
    let ids = listed.as_array().expect("servers").iter();
    let ids: Vec<String> = ids
        .map(|row| row["id"].as_str().expect("an id").to_owned())
        .collect();
    for users in (0..USERS).collect::<Vec<_>>().chunks(50) {
        let rows = users.iter().flat_map(|user| {
            ids.iter().enumerate().map(move |(at, id)| {
                format!("('{user:04}-{at}', 'user-{user}', '{id}', '{{\"KEY\": \"key {at} of {user}\"}}')")
            })
        });
        let rows = rows.collect::<Vec<_>>().join(", ");
        database.execute(format!(
            "INSERT INTO mcp_user_credentials (id, user_id, mcp_server_id, credentials) VALUES {rows}"
        ));
    }
}

fn embedded(ground: &Ground, database: &TestDatabase) {
    let command = on_store(ground.embedded_command(), &database.url);
    let mut daemon = Daemon::start(ground, command);
    let mut pass = |name: &str, aim: &str| {
        let times = (0..USERS).map(|user| {
            let started = Instant::now();
            let user = json!({"userId": format!("user-{user}")});
            let task = daemon.command(json!({"command": "list_servers", "user": user}));
            let answer = daemon.answer(&task);
            let took = started.elapsed();
            assert_eq!(answer.ok()["servers"][0]["credential_source"], "user");
            took
        });
        show(name, times.collect(), aim);
    };
    pass("embedded, list_servers, first", "20");
    pass("embedded, list_servers, again", "1");
    daemon.finish();
}

fn served(ground: &Ground, database: &TestDatabase, token: &str) {
    let server = ConfigServer::start(ground, &database.url, &[]);
    let stream = TcpStream::connect(server.address()).expect("it listens");
    stream.set_nodelay(true).expect("a socket");
    let mut stream = BufReader::new(stream);
    let mut tags = vec![String::new(); USERS];
    for (name, status) in [("whole", "200"), ("unchanged", "304")] {
        let times = tags.iter_mut().enumerate().map(|(user, tag)| {
            let started = Instant::now();
            let (line, new_tag) = ask(&mut stream, token, user, tag);
            let took = started.elapsed();
            assert!(line.contains(status), "{line}");
            *tag = new_tag;
            took
        });
        let times = times.collect();
        show(
            &format!("config server on {:?}, {name}", database.kind),
            times,
            "20",
        );
    }
}

/// One question on a connection that stays; the status line and the tag of the answer.
fn ask(stream: &mut BufReader<TcpStream>, token: &str, user: usize, tag: &str) -> (String, String) {
    let body = json!({"user_id": format!("user-{user}")}).to_string();
    let text = format!(
        "POST /internal/mcp/config HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer {token}\r\n\
         If-None-Match: {tag}\r\nContent-Length: {}\r\n\r\n{body}",
        body.len()
    );
    stream
        .get_mut()
        .write_all(text.as_bytes())
        .expect("it reads");
    let (mut first, mut tag, mut length) = (String::new(), String::new(), 0);
    loop {
        let mut line = String::new();
        stream.read_line(&mut line).expect("it answers");
        let line = line.trim();
        if line.is_empty() {
            break;
        }
        if first.is_empty() {
            first = line.to_owned();
        }
        match line.split_once(": ") {
            Some(("etag", value)) => tag = value.to_owned(),
            Some(("content-length", value)) => length = value.parse().expect("a number"),
            _ => {}
        }
    }
    let mut body = vec![0; length];
    stream.read_exact(&mut body).expect("it answers");
    (first, tag)
}

fn show(name: &str, mut times: Vec<Duration>, aim: &str) {
    times.sort();
    let at = |share: usize| times[(times.len() * share / 100).min(times.len() - 1)];
    let ms = |time: Duration| time.as_secs_f64() * 1e3;
    println!(
        "{name:<44} {:>9.2} {:>9.2} {aim:>9}",
        ms(at(50)),
        ms(at(99))
    );
}
