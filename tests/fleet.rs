//! Config servers for many daemons: who is let in, how soon a change is everywhere, and what happens
//! when servers, databases and connections end.

mod databases;
mod ground;
#[path = "keys/sign.rs"]
mod sign;

use std::io::{Read, Write};
use std::net::TcpStream;
use std::time::{Duration, Instant};

use databases::{Kind, TestDatabase};
use ground::fleet::{ConfigServer, Proxy, ask, http, on_store};
use ground::{Daemon, Ground, call, wait_for};
use rustix::process::Signal;
use serde_json::{Value, json};
use sign::{SECRET, Signer, in_seconds};

const PATH: &str = "POST /internal/mcp/config HTTP/1.1";

/// Runs the command line on the store.
fn store(ground: &Ground, url: &str, arguments: &[&str], input: &str) -> String {
    let mut command = on_store(ground.embedded_command(), url);
    command.args(arguments);
    ground.run(command, input).trim().to_owned()
}

/// A server that whispers the credential it was started with.
fn define(ground: &Ground, url: &str, name: &str) {
    ground.stdio(name, json!({}), |row| {
        row.token("KEY");
    });
    let row = ground.host.server(name).to_string();
    store(ground, url, &["server", "add", "--json", "-"], &row);
}

fn set(ground: &Ground, url: &str, user: &str, server: &str, key: &str) {
    let arguments = ["credential", "set", server, "--user", user];
    store(ground, url, &arguments, &json!({"KEY": key}).to_string());
}

fn daemon_of(ground: &Ground, base: &str, token: &str) -> Daemon {
    let mut command = ground.embedded_command();
    command.env("API_BASE", base).env("INTERNAL_TOKEN", token);
    Daemon::start(ground, command)
}

fn whoami(daemon: &mut Daemon, user: &str) -> ground::Answer {
    let user = json!({"userId": user});
    let params = call("books", "whoami", json!({}));
    let task = daemon.command(json!({"command": "invoke", "params": params, "user": user}));
    daemon.answer(&task)
}

/// An HS256 key file for `server.jwt_key`.
fn key_file(ground: &Ground) -> String {
    let key = ground.path("jwt.key");
    std::fs::write(&key, SECRET).expect("a key");
    key.display().to_string()
}

fn token_of(user: &str) -> String {
    Signer::hs256().token(&json!({"sub": user, "exp": in_seconds(600)}))
}

#[test]
fn a_rotated_credential_is_in_force_everywhere_within_ttl() {
    for database in TestDatabase::of_each_kind() {
        let ground = Ground::new();
        define(&ground, &database.url, "books");
        set(&ground, &database.url, "ann", "books", "key-0");
        let token = store(&ground, &database.url, &["token", "add", "daemons"], "");
        let servers = [(); 2].map(|()| ConfigServer::start(&ground, &database.url, &[]));
        let asked = [&servers[0], &servers[0], &servers[1]];
        let mut daemons = asked.map(|server| {
            let home = Ground::new();
            home.set("config_ttl", "300ms");
            let daemon = daemon_of(&home, &server.base, &token);
            (daemon, home)
        });
        for (daemon, _) in &mut daemons {
            assert_eq!(whoami(daemon, "ann").content(), "key-0");
        }
        for turn in 1..4 {
            let (old, new) = (format!("key-{}", turn - 1), format!("key-{turn}"));
            set(&ground, &database.url, "ann", "books", &new);
            let changed = Instant::now();
            let mut is_new = [false; 3];
            while is_new != [true; 3] {
                for ((daemon, _), is_new) in daemons.iter_mut().zip(&mut is_new) {
                    let asked = Instant::now();
                    let answer = whoami(daemon, "ann");
                    let key = answer.content();
                    assert!(key == new || (key == old && !*is_new), "{key} after {new}");
                    *is_new = key == new;
                    // The old one may be used for ttl after the change, and not a moment longer.
                    let within = asked - changed <= Duration::from_millis(300);
                    assert!(*is_new || within, "{old} used {:?} late", asked - changed);
                }
            }
        }
        store(
            &ground,
            &database.url,
            &["credential", "remove", "books", "--user", "ann"],
            "",
        );
        let removed = Instant::now();
        for (mut daemon, _home) in daemons {
            wait_for("the removal", || {
                let asked = Instant::now();
                let answer = whoami(&mut daemon, "ann");
                let within = asked - removed <= Duration::from_millis(300);
                assert!(
                    answer.is_failure() || within,
                    "used {:?} late",
                    asked - removed
                );
                answer.is_failure().then_some(())
            });
            whoami(&mut daemon, "ann").failure("credentials_required");
            daemon.finish();
        }
    }
}

#[test]
fn a_token_speaks_for_its_user_alone_and_others_look_like_nobody() {
    for database in TestDatabase::of_each_kind() {
        let ground = Ground::new();
        define(&ground, &database.url, "books");
        for user in ["ann", "bob"] {
            set(
                &ground,
                &database.url,
                user,
                "books",
                &format!("key of {user}"),
            );
        }
        let key = key_file(&ground);
        let server = ConfigServer::start(&ground, &database.url, &[("server_jwt_key", &key)]);
        let address = server.address();
        let (status, own) = ask(address, &token_of("ann"), json!("ann"));
        assert_eq!((status, &own["code"]), (200, &json!(200)));
        let text = own.to_string();
        assert!(
            text.contains("key of ann") && !text.contains("bob"),
            "{text}"
        );

        let mut refusals = Vec::new();
        for user in [
            json!("bob"),
            json!("nobody"),
            json!("Ann"),
            json!("ann "),
            json!(""),
            Value::Null,
        ] {
            let (status, mut refusal) = ask(address, &token_of("ann"), user);
            assert_eq!(status, 403);
            refusal["timestamp"].take();
            refusals.push(refusal);
        }
        assert!(
            refusals.iter().all(|one| *one == refusals[0]),
            "{refusals:?}"
        );
    }
}

#[test]
fn without_a_good_bearer_nothing_is_said() {
    let database = TestDatabase::new(Kind::Sqlite).expect("SQLite is always there");
    let ground = Ground::new();
    let key = key_file(&ground);
    let settings = [
        ("server_jwt_key", key.as_str()),
        ("server_jwt_audience", "mcp"),
    ];
    let server = ConfigServer::start(&ground, &database.url, &settings);
    let address = server.address();
    let claims = |more: Value| {
        let mut claims = json!({"sub": "ann", "exp": in_seconds(600), "aud": "mcp"});
        let more = more.as_object().expect("an object").clone();
        claims.as_object_mut().expect("an object").extend(more);
        claims
    };
    let signer = Signer::hs256();
    let good = signer.token(&claims(json!({})));
    assert_eq!(ask(address, &good, json!("ann")).0, 200);
    let service = store(&ground, &database.url, &["token", "add", "daemons"], "");
    assert_eq!(ask(address, &service, json!("anybody")).0, 200);
    assert_eq!(ask(address, &service, Value::Null).0, 200);

    let mut altered = service.clone();
    altered.replace_range(
        altered.len() - 1..,
        if altered.ends_with('A') { "B" } else { "A" },
    );
    let heads = [
        String::new(),
        "\r\nAuthorization: Bearer ".to_owned(),
        "\r\nAuthorization: Bearer mcps_".to_owned(),
        format!("\r\nAuthorization: Bearer {altered}"),
        format!(
            "\r\nAuthorization: Bearer {}",
            &service[..service.len() - 1]
        ),
        format!("\r\nAuthorization: Basic {good}"),
        format!("\r\nAuthorization: {good}"),
        format!("\r\nAuthorization: Bearer {good}\r\nAuthorization: Bearer {good}"),
        format!("\r\nAuthorization: Bearer {good}, Bearer {good}"),
        format!(
            "\r\nAuthorization: Bearer {}",
            signer.token(&claims(json!({"aud": "other"})))
        ),
        format!(
            "\r\nAuthorization: Bearer {}",
            signer.token(&claims(json!({"exp": in_seconds(-60)})))
        ),
        format!(
            "\r\nAuthorization: Bearer {}",
            Signer::Hs256(vec![7; 40]).token(&claims(json!({})))
        ),
        format!("\r\nCookie: token={good}"),
    ];
    let mut said = Vec::new();
    for head in &heads {
        // Not even that the question is no JSON.
        let (status, _, body) = http(address, &format!("{PATH}{head}"), "{");
        assert_eq!(status, 401, "{head}");
        let mut body: Value = serde_json::from_str(&body).expect("JSON");
        body["timestamp"].take();
        said.push(body);
    }
    assert!(said.iter().all(|one| *one == said[0]), "{said:?}");
    // Nor is what they send read.
    let mut stream = TcpStream::connect(address).expect("it listens");
    let text = format!("{PATH}\r\nHost: x\r\nContent-Length: 1000\r\n\r\n");
    stream.write_all(text.as_bytes()).expect("it reads");
    let mut start = [0; 12];
    stream.read_exact(&mut start).expect("it answers at once");
    assert_eq!(&start, b"HTTP/1.1 401");
    // A token in the url is none.
    let query = format!("POST /internal/mcp/config?access_token={good}&token={service} HTTP/1.1");
    assert_eq!(http(address, &query, r#"{"user_id":"ann"}"#).0, 401);
    let log = server.stderr();
    assert!(!log.contains(&good) && !log.contains(&service), "{log}");
}

#[test]
fn a_service_token_is_kept_as_a_hash_and_can_be_taken_back() {
    for database in TestDatabase::of_each_kind() {
        let ground = Ground::new();
        ground.set("config_ttl", "0s");
        define(&ground, &database.url, "books");
        set(&ground, &database.url, "ann", "books", "ann's");
        let token = store(&ground, &database.url, &["token", "add", "daemons"], "");
        let listed = store(&ground, &database.url, &["token", "list", "--json"], "");
        let secret = token.rsplit('_').next().expect("a secret");
        assert!(
            listed.contains("daemons") && !listed.contains(secret),
            "{listed}"
        );
        let server = ConfigServer::start(&ground, &database.url, &[]);
        let mut daemon = daemon_of(&ground, &server.base, &token);
        assert_eq!(whoami(&mut daemon, "ann").content(), "ann's");
        store(&ground, &database.url, &["token", "remove", "daemons"], "");
        whoami(&mut daemon, "ann").failure("config_unauthorized");
        daemon.finish();
    }
}

#[test]
fn a_user_without_a_token_is_nobody_unless_a_service_token_speaks_for_them() {
    let database = TestDatabase::new(Kind::Sqlite).expect("SQLite is always there");
    let ground = Ground::new();
    define(&ground, &database.url, "books");
    set(&ground, &database.url, "ann", "books", "ann's");
    let key = key_file(&ground);
    let server = ConfigServer::start(&ground, &database.url, &[("server_jwt_key", &key)]);
    let mut command = ground.embedded_command();
    command.env("API_BASE", &server.base);
    let mut daemon = Daemon::start(&ground, command);
    whoami(&mut daemon, "ann").failure("config_unauthorized");
    // A user's own token that is used for another.
    let user = json!({"userId": "ann", "accessToken": token_of("eve")});
    let params = call("books", "whoami", json!({}));
    let task = daemon.command(json!({"command": "invoke", "params": params, "user": user}));
    daemon.answer(&task).failure("config_unauthorized");
    daemon.finish();
}

#[test]
fn the_hosts_token_is_seen_by_the_config_server_and_by_no_mcp_server() {
    let database = TestDatabase::new(Kind::Sqlite).expect("SQLite is always there");
    let ground = Ground::new();
    let by_pipe = ground.stdio("by-pipe", json!({}), |row| {
        row.public();
    });
    let by_http = ground.http("by-http", json!({}), |row| {
        row.public();
    });
    for name in ["by-pipe", "by-http"] {
        let row = ground.host.server(name).to_string();
        store(
            &ground,
            &database.url,
            &["server", "add", "--json", "-"],
            &row,
        );
    }
    let key = key_file(&ground);
    let server = ConfigServer::start(&ground, &database.url, &[("server_jwt_key", &key)]);
    let mut command = ground.embedded_command();
    command.env("API_BASE", &server.base);
    let mut daemon = Daemon::start(&ground, command);
    let token = token_of("ann");
    let user = json!({"userId": "ann", "accessToken": token});
    let mut content = |name: &str, tool: &str, arguments: Value| {
        let params = call(name, tool, arguments);
        let task = daemon.command(json!({"command": "invoke", "params": params, "user": user}));
        daemon.answer(&task).content().to_owned()
    };
    let headers = content("by-http", "headers", json!({}));
    assert!(
        headers.contains("mcp-") && !headers.contains(&token),
        "{headers}"
    );
    let names = content("by-pipe", "env", json!({}));
    assert!(names.contains("PATH"), "{names}");
    for name in names.split(|c: char| !c.is_alphanumeric() && c != '_') {
        let value = content("by-pipe", "env", json!({"name": name}));
        assert!(!value.contains(&token), "{name}");
    }
    for fake in [by_pipe, by_http] {
        let events = fake.events();
        assert!(!events.is_empty());
        assert!(!json!(events).to_string().contains(&token));
    }
    daemon.finish();
}

#[test]
fn an_answer_that_still_holds_is_not_sent_again() {
    for database in TestDatabase::of_each_kind() {
        let ground = Ground::new();
        define(&ground, &database.url, "books");
        let token = store(&ground, &database.url, &["token", "add", "daemons"], "");
        let servers = [(); 2].map(|()| ConfigServer::start(&ground, &database.url, &[]));
        let get = |server: &ConfigServer, user: &str, tag: &str| {
            let head = format!("{PATH}\r\nAuthorization: Bearer {token}\r\nIf-None-Match: {tag}");
            let (status, head, body) = http(
                server.address(),
                &head,
                &json!({"user_id": user}).to_string(),
            );
            let tag = head
                .lines()
                .find_map(|line| line.strip_prefix("etag: ").map(str::to_owned));
            // The headers were folded to lower case for the search; the tag itself is not.
            (status, tag.expect("a tag"), body)
        };
        let raw = |server: &ConfigServer, user: &str| {
            let mut stream = TcpStream::connect(server.address()).expect("it listens");
            let body = json!({"user_id": user}).to_string();
            let text = format!(
                "{PATH}\r\nHost: x\r\nConnection: close\r\nAuthorization: Bearer {token}\r\nContent-Length: {}\r\n\r\n{body}",
                body.len()
            );
            stream.write_all(text.as_bytes()).expect("it reads");
            let mut answer = String::new();
            stream.read_to_string(&mut answer).expect("it answers");
            let tag = answer.lines().find_map(|line| line.strip_prefix("etag: "));
            tag.expect("a tag").to_owned()
        };
        let tag = raw(&servers[0], "ann");
        for server in &servers {
            let (status, _, body) = get(server, "ann", &tag);
            assert_eq!((status, body.as_str()), (304, ""), "the servers agree");
            assert_eq!(get(server, "ann", &format!("\"x\", W/{tag}")).0, 304);
            assert_eq!(
                get(server, "bob", &tag).0,
                200,
                "another user is another answer"
            );
        }
        set(&ground, &database.url, "bob", "books", "bob's");
        assert_eq!(
            get(&servers[0], "ann", &tag).0,
            304,
            "nothing of ann's has changed"
        );
        set(&ground, &database.url, "ann", "books", "ann's");
        assert_eq!(get(&servers[1], "ann", &tag).0, 200);
        let tag = raw(&servers[1], "ann");
        store(&ground, &database.url, &["server", "disable", "books"], "");
        assert_eq!(get(&servers[0], "ann", &tag).0, 200);
    }
}

#[test]
fn requests_that_are_being_answered_come_to_their_end_at_sigterm() {
    let database = TestDatabase::new(Kind::Sqlite).expect("SQLite is always there");
    let ground = Ground::new();
    let token = store(&ground, &database.url, &["token", "add", "daemons"], "");
    let mut server = ConfigServer::start(&ground, &database.url, &[]);
    let address = server.address().to_owned();
    let mut stream = TcpStream::connect(&address).expect("it listens");
    let body = r#"{"user_id":"ann"}"#;
    let head = format!(
        "{PATH}\r\nHost: x\r\nAuthorization: Bearer {token}\r\nExpect: 100-continue\r\nContent-Length: {}\r\n\r\n",
        body.len()
    );
    stream.write_all(head.as_bytes()).expect("it reads");
    // Now the request is being worked on: it is asked to go on.
    let mut said = [0; 25];
    stream.read_exact(&mut said).expect("it answers");
    assert!(
        said.starts_with(b"HTTP/1.1 100"),
        "{:?}",
        String::from_utf8_lossy(&said)
    );
    let mut idle = TcpStream::connect(&address).expect("it listens");
    assert_eq!(http(&address, "GET /ready HTTP/1.1", "").0, 200);
    server.signal(Signal::TERM);
    wait_for("the end of listening", || {
        TcpStream::connect(&address).is_err().then_some(())
    });
    stream.write_all(body.as_bytes()).expect("it reads on");
    let mut answer = String::new();
    stream.read_to_string(&mut answer).expect("it answers");
    assert!(answer.starts_with("HTTP/1.1 200"), "{answer}");
    assert_eq!(idle.read(&mut [0; 8]).expect("it is closed"), 0);
    assert!(server.ended());
}

#[test]
fn what_clients_may_take_is_bounded() {
    let database = TestDatabase::new(Kind::Sqlite).expect("SQLite is always there");
    let ground = Ground::new();
    let token = store(&ground, &database.url, &["token", "add", "daemons"], "");
    let settings = [
        ("server_max_connections", "2"),
        ("server_request_timeout", "400ms"),
    ];
    let server = ConfigServer::start(&ground, &database.url, &settings);
    let address = server.address();
    let head = format!("{PATH}\r\nAuthorization: Bearer {token}");
    assert_eq!(http(address, &head, &" ".repeat(900_000)).0, 400);
    let mut stream = TcpStream::connect(address).expect("it listens");
    let text = format!("{head}\r\nHost: x\r\nContent-Length: 1100000\r\n\r\n");
    stream.write_all(text.as_bytes()).expect("it reads");
    let mut start = [0; 12];
    stream
        .read_exact(&mut start)
        .expect("refused before it is sent");
    assert_eq!(&start, b"HTTP/1.1 413");
    drop(stream);

    // Two that never finish their question take both places, and lose them in time.
    let started = Instant::now();
    let mut slow = [(); 2].map(|()| {
        let mut stream = TcpStream::connect(address).expect("it listens");
        stream
            .write_all(b"POST /internal/mcp/config HTTP/1.1\r\nHo")
            .expect("it reads");
        stream
    });
    assert_eq!(http(address, "GET /health HTTP/1.1", "").0, 200);
    assert!(
        started.elapsed() >= Duration::from_millis(300),
        "it waited for a place"
    );
    for stream in &mut slow {
        let mut said = String::new();
        let _ = stream.read_to_string(&mut said);
        assert!(
            said.is_empty() || said.starts_with("HTTP/1.1 408"),
            "{said}"
        );
    }
    // The body that does not come.
    let mut stream = TcpStream::connect(address).expect("it listens");
    let text = format!("{head}\r\nHost: x\r\nContent-Length: 10\r\n\r\n");
    stream.write_all(text.as_bytes()).expect("it reads");
    stream.read_exact(&mut start).expect("it answers");
    assert_eq!(&start, b"HTTP/1.1 408");
}

#[test]
fn whoever_does_not_read_an_answer_loses_the_connection() {
    let database = TestDatabase::new(Kind::Sqlite).expect("SQLite is always there");
    let ground = Ground::new();
    let token = store(&ground, &database.url, &["token", "add", "daemons"], "");
    // More than the buffers between two sockets hold.
    for at in 0..12 {
        let row =
            json!({"name": format!("s{at}"), "command": "x", "description": "d".repeat(1_000_000)});
        let row = row.to_string();
        store(
            &ground,
            &database.url,
            &["server", "add", "--json", "-"],
            &row,
        );
    }
    let settings = [
        ("server_max_connections", "1"),
        ("server_request_timeout", "2s"),
    ];
    let server = ConfigServer::start(&ground, &database.url, &settings);
    let mut lazy = TcpStream::connect(server.address()).expect("it listens");
    let text = format!(
        "{PATH}\r\nHost: x\r\nAuthorization: Bearer {token}\r\nContent-Length: 2\r\n\r\n{{}}"
    );
    lazy.write_all(text.as_bytes()).expect("it reads");
    let mut start = [0; 12];
    lazy.read_exact(&mut start).expect("it answers");
    assert_eq!(&start, b"HTTP/1.1 200");
    assert_eq!(http(server.address(), "GET /health HTTP/1.1", "").0, 200);
    drop(lazy);
}

#[test]
fn a_daemon_speaks_tls_with_a_server_whose_certificate_it_knows() {
    let database = TestDatabase::new(Kind::Sqlite).expect("SQLite is always there");
    let ground = Ground::new();
    define(&ground, &database.url, "books");
    set(&ground, &database.url, "ann", "books", "ann's");
    let token = store(&ground, &database.url, &["token", "add", "daemons"], "");
    let file = |name: &str| format!("{}/tests/keys/{name}", env!("CARGO_MANIFEST_DIR"));
    let (cert, key) = (file("tls.cert.pem"), file("tls.key.pem"));
    let settings = [
        ("server_tls_cert", cert.as_str()),
        ("server_tls_key", key.as_str()),
    ];
    let server = ConfigServer::start(&ground, &database.url, &settings);
    assert!(server.base.starts_with("https://"), "{}", server.base);
    let start = |knows: bool| {
        let mut command = ground.embedded_command();
        command
            .env("API_BASE", &server.base)
            .env("INTERNAL_TOKEN", &token);
        command.env("MCP_CLIENT_CONFIG_TIMEOUT", "2s");
        if knows {
            command.env("SSL_CERT_FILE", &cert);
        }
        Daemon::start(&ground, command)
    };
    let mut daemon = start(true);
    assert_eq!(whoami(&mut daemon, "ann").content(), "ann's");
    server.signal(Signal::HUP);
    wait_for("the reload", || {
        (whoami(&mut daemon, "ann").content() == "ann's").then_some(())
    });
    daemon.finish();
    let mut stranger = start(false);
    whoami(&mut stranger, "ann").failure("config_unavailable");
    stranger.finish();
}

#[test]
fn new_keys_of_a_jwks_are_learnt_when_a_token_names_one() {
    let database = TestDatabase::new(Kind::Sqlite).expect("SQLite is always there");
    let ground = Ground::new();
    let signers = [Signer::es256(), Signer::ed25519(), Signer::rs256()];
    let issuer = Issuer::start(json!({"keys": [signers[0].jwk("old")]}));
    let settings = [
        ("server_jwt_jwks", issuer.url.as_str()),
        ("server_jwt_admin", "role=admin"),
    ];
    let server = ConfigServer::start(&ground, &database.url, &settings);
    let ask_with = |signer: &Signer, id: &str, claims: Value| {
        let header = json!({"alg": signer.name(), "kid": id});
        ask(
            server.address(),
            &signer.sign(&header, &claims),
            json!("ann"),
        )
        .0
    };
    let ann = json!({"userId": "ann", "exp": in_seconds(600)});
    assert_eq!(ask_with(&signers[0], "old", ann.clone()), 200);
    issuer.publish(json!({"keys": [signers[0].jwk("old"), signers[1].jwk("new")]}));
    assert_eq!(ask_with(&signers[1], "new", ann.clone()), 200);
    // Whoever makes names up does not make the server ask each time.
    let asked = issuer.asked();
    for at in 0..20 {
        assert_eq!(
            ask_with(&signers[2], &format!("made-up-{at}"), ann.clone()),
            401
        );
    }
    assert_eq!(issuer.asked(), asked);
    let admin = json!({"sub": "root", "role": ["user", "admin"], "exp": in_seconds(600)});
    assert_eq!(ask_with(&signers[0], "old", admin), 200);
    let no_admin = json!({"sub": "root", "role": "administrator", "exp": in_seconds(600)});
    assert_eq!(ask_with(&signers[0], "old", no_admin), 403);
}

/// Publishes a JWKS.
struct Issuer {
    url: String,
    set: std::sync::Arc<std::sync::Mutex<(Value, usize)>>,
}

impl Issuer {
    fn start(set: Value) -> Self {
        let listener = std::net::TcpListener::bind("127.0.0.1:0").expect("a free port");
        let address = listener.local_addr().expect("an address");
        let set = std::sync::Arc::new(std::sync::Mutex::new((set, 0)));
        let shown = set.clone();
        std::thread::spawn(move || {
            for mut stream in listener.incoming().map_while(Result::ok) {
                let mut part = [0; 4096];
                let _ = stream.read(&mut part);
                let mut shown = shown.lock().expect("unpoisoned");
                shown.1 += 1;
                let body = shown.0.to_string();
                let _ = write!(
                    stream,
                    "HTTP/1.1 200 OK\r\nConnection: close\r\nContent-Length: {}\r\n\r\n{body}",
                    body.len()
                );
            }
        });
        Self {
            url: format!("http://{address}/jwks.json"),
            set,
        }
    }

    fn publish(&self, set: Value) {
        self.set.lock().expect("unpoisoned").0 = set;
    }

    fn asked(&self) -> usize {
        self.set.lock().expect("unpoisoned").1
    }
}

/// The store's url through a proxy that can be cut.
fn through_proxy(database: &TestDatabase) -> (Proxy, String) {
    let rest = database.url.rsplit_once('@').expect("user@host").1;
    let (target, name) = rest.split_once('/').expect("host/name");
    let proxy = Proxy::to(target.to_owned());
    let url = database
        .url
        .replace(target, &format!("127.0.0.1:{}", proxy.port));
    assert!(url.ends_with(name));
    (proxy, url)
}

#[test]
fn a_database_that_goes_away_and_comes_back_costs_warm_users_nothing() {
    for kind in [Kind::MySql, Kind::Postgres] {
        let Some(database) = TestDatabase::new(kind) else {
            continue;
        };
        let ground = Ground::new();
        ground.set("config_ttl", "0s");
        ground.set("config_timeout", "1s");
        define(&ground, &database.url, "books");
        for user in ["ann", "bob"] {
            set(&ground, &database.url, user, "books", user);
        }
        let token = store(&ground, &database.url, &["token", "add", "daemons"], "");
        let (proxy, url) = through_proxy(&database);
        let server = ConfigServer::start(&ground, &url, &[]);
        let mut daemon = daemon_of(&ground, &server.base, &token);
        assert_eq!(whoami(&mut daemon, "ann").content(), "ann");
        proxy.cut();
        assert_eq!(whoami(&mut daemon, "ann").content(), "ann", "warm");
        whoami(&mut daemon, "bob").failure("config_unavailable");
        assert_eq!(http(server.address(), "GET /health HTTP/1.1", "").0, 200);
        assert_eq!(http(server.address(), "GET /ready HTTP/1.1", "").0, 503);
        proxy.mend();
        let mended = Instant::now();
        wait_for("the database's return", || {
            (!whoami(&mut daemon, "bob").is_failure()).then_some(())
        });
        assert!(
            mended.elapsed() < Duration::from_secs(3),
            "{:?}",
            mended.elapsed()
        );
        assert_eq!(http(server.address(), "GET /ready HTTP/1.1", "").0, 200);
        daemon.finish();
    }
}

#[test]
fn connections_killed_under_load_lose_no_command_and_mix_no_users() {
    for database in TestDatabase::of_each_kind() {
        let ground = Ground::new();
        ground.set("config_ttl", "0s");
        define(&ground, &database.url, "books");
        let users: Vec<String> = (0..4).map(|at| format!("user-{at}")).collect();
        for user in &users {
            set(&ground, &database.url, user, "books", user);
        }
        let token = store(&ground, &database.url, &["token", "add", "daemons"], "");
        let server = ConfigServer::start(&ground, &database.url, &[]);
        let mut daemon = daemon_of(&ground, &server.base, &token);
        for user in &users {
            assert_eq!(whoami(&mut daemon, user).content(), user);
        }
        for round in 0..5 {
            let params = call("books", "whoami", json!({"round": round}));
            let send = |user: &String| {
                daemon.command(
                    json!({"command": "invoke", "params": params, "user": {"userId": user}}),
                )
            };
            let tasks: Vec<_> = users.iter().cycle().take(40).map(send).collect();
            database.end_connections();
            for (task, user) in tasks.iter().zip(users.iter().cycle()) {
                assert_eq!(daemon.answer(task).content(), user);
            }
        }
        daemon.finish();
    }
}

#[test]
fn a_killed_config_server_costs_warm_users_nothing() {
    let database = TestDatabase::new(Kind::Sqlite).expect("SQLite is always there");
    let ground = Ground::new();
    ground.set("config_ttl", "0s");
    ground.set("config_timeout", "500ms");
    define(&ground, &database.url, "books");
    for user in ["ann", "bob"] {
        set(&ground, &database.url, user, "books", user);
    }
    let token = store(&ground, &database.url, &["token", "add", "daemons"], "");
    let mut server = ConfigServer::start(&ground, &database.url, &[]);
    let address = server.address().to_owned();
    let mut daemon = daemon_of(&ground, &server.base, &token);
    assert_eq!(whoami(&mut daemon, "ann").content(), "ann");
    server.signal(Signal::KILL);
    assert!(!server.ended());
    assert_eq!(whoami(&mut daemon, "ann").content(), "ann");
    whoami(&mut daemon, "bob").failure("config_unavailable");
    let again = ConfigServer::start(&ground, &database.url, &[("server_listen", &address)]);
    assert_eq!(whoami(&mut daemon, "bob").content(), "bob");
    drop(again);
    daemon.finish();
}

#[test]
fn servers_that_end_behind_a_balancer_cost_no_command() {
    let database = TestDatabase::new(Kind::Sqlite).expect("SQLite is always there");
    let ground = Ground::new();
    ground.set("config_ttl", "0s");
    define(&ground, &database.url, "books");
    let users: Vec<String> = (0..5).map(|at| format!("user-{at}")).collect();
    for user in &users {
        set(&ground, &database.url, user, "books", user);
    }
    let token = store(&ground, &database.url, &["token", "add", "daemons"], "");
    let mut servers = vec![
        ConfigServer::start(&ground, &database.url, &[]),
        ConfigServer::start(&ground, &database.url, &[]),
    ];
    let addresses: Vec<String> = servers
        .iter()
        .map(|server| server.address().to_owned())
        .collect();
    let balancer = Proxy::between(addresses.clone());
    let base = format!("http://127.0.0.1:{}", balancer.port);
    let mut daemon = daemon_of(&ground, &base, &token);
    // Killed, and ended in peace; each is there again before the next one goes.
    for (turn, signal) in [Signal::KILL, Signal::TERM, Signal::KILL, Signal::TERM]
        .into_iter()
        .enumerate()
    {
        let params = call("books", "whoami", json!({"turn": turn}));
        let tasks: Vec<_> = (0..60)
            .map(|at| {
                if at == 30 {
                    servers[0].signal(signal);
                }
                let user = json!({"userId": users[at % users.len()]});
                daemon.command(json!({"command": "invoke", "params": params, "user": user}))
            })
            .collect();
        for (task, user) in tasks.iter().zip(users.iter().cycle()) {
            assert_eq!(daemon.answer(task).content(), user);
        }
        let mut ended = servers.remove(0);
        let address = ended.address().to_owned();
        assert_eq!(ended.ended(), signal == Signal::TERM);
        servers.push(ConfigServer::start(
            &ground,
            &database.url,
            &[("server_listen", &address)],
        ));
    }
    let log = daemon.stderr();
    assert!(!log.contains("going on with what it last said"), "{log}");
    daemon.finish();
}

#[test]
fn a_server_whose_settings_are_wrong_says_which_and_does_not_start() {
    let database = TestDatabase::new(Kind::Sqlite).expect("SQLite is always there");
    let ground = Ground::new();
    let short = ground.path("short.key");
    std::fs::write(&short, "secret").expect("a key");
    let short = short.display().to_string();
    for (name, value, said) in [
        ("SERVER_JWT_KEY", short.as_str(), "server.jwt_key"),
        ("SERVER_JWT_KEY", "/nowhere", "server.jwt_key"),
        ("SERVER_JWT_JWKS", "http://id.example/jwks", "https://"),
        ("SERVER_JWT_ADMIN", "admin", "server.jwt_admin"),
        ("SERVER_TLS_CERT", "/nowhere", "server.tls_key"),
        ("SERVER_LISTEN", "192.0.2.1:1", "server.listen"),
        ("SERVER_LISTEN", "here", "SERVER_LISTEN"),
    ] {
        let mut command = on_store(ground.embedded_command(), &database.url);
        command
            .arg("config-server")
            .env(format!("MCP_CLIENT_{name}"), value);
        let output = command.output().expect("it runs");
        let stderr = String::from_utf8_lossy(&output.stderr);
        assert!(
            !output.status.success() && stderr.contains(said),
            "{name}={value}: {stderr}"
        );
        assert!(output.stdout.is_empty());
    }
}
