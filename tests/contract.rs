//! One contract, whoever keeps it: the embedded store, config servers on each database, and a host's
//! own config API.

mod databases;
mod ground;
#[path = "keys/sign.rs"]
mod sign;

use std::process::Command;

use databases::{Kind, TestDatabase};
use ground::fleet::{ConfigServer, on_store};
use ground::{Answer, Daemon, Fake, Ground, Row, call};
use serde_json::{Value, json};
use sign::{SECRET, Signer, in_seconds};

/// Where definitions and credentials are kept.
enum Plane {
    Embedded,
    /// The daemon's own store, on a database that others could share.
    Shared(TestDatabase),
    Fleet(Box<(ConfigServer, TestDatabase)>),
    Host,
}

struct Stage {
    plane: Plane,
    ground: Ground,
}

/// Every plane there is, each on a ground of its own. A change is seen by the next command.
fn stages() -> Vec<Stage> {
    let ground = || {
        let ground = Ground::new();
        ground.set("config_ttl", "0s");
        ground
    };
    let stage = |plane| Stage {
        plane,
        ground: ground(),
    };
    let fleets = TestDatabase::of_each_kind().into_iter().map(|database| {
        let ground = ground();
        let key = ground.path("jwt.key");
        std::fs::write(&key, SECRET).expect("a key");
        let key = key.display().to_string();
        let server = ConfigServer::start(&ground, &database.url, &[("server_jwt_key", &key)]);
        let plane = Plane::Fleet(Box::new((server, database)));
        Stage { plane, ground }
    });
    let own = [stage(Plane::Embedded), stage(Plane::Host)];
    let shared = [Kind::MySql, Kind::Postgres]
        .into_iter()
        .filter_map(TestDatabase::new)
        .map(|database| stage(Plane::Shared(database)));
    own.into_iter().chain(shared).chain(fleets).collect()
}

impl Stage {
    fn name(&self) -> String {
        match &self.plane {
            Plane::Embedded => "embedded".to_owned(),
            Plane::Host => "host".to_owned(),
            Plane::Shared(database) => format!("store on {:?}", database.kind),
            Plane::Fleet(fleet) => format!("config server on {:?}", fleet.1.kind),
        }
    }

    /// The command line on this plane's store.
    fn store(&self, arguments: &[&str], input: &str) {
        let mut command = self.on_own_store();
        command.args(arguments);
        self.ground.run(command, input);
    }

    fn on_own_store(&self) -> Command {
        let command = self.ground.embedded_command();
        match &self.plane {
            Plane::Fleet(fleet) => on_store(command, &fleet.1.url),
            Plane::Shared(database) => on_store(command, &database.url),
            Plane::Embedded | Plane::Host => command,
        }
    }

    fn is_host(&self) -> bool {
        matches!(self.plane, Plane::Host)
    }

    fn define(&self, name: &str, row: impl FnOnce(&mut Row)) -> Fake {
        let fake = self.ground.stdio(name, json!({}), row);
        if !self.is_host() {
            let row = self.ground.host.server(name).to_string();
            self.store(&["server", "add", "--json", "-"], &row);
        }
        fake
    }

    fn verb(&self, verb: &str, name: &str) {
        match verb {
            _ if !self.is_host() => self.store(&["server", verb, name], ""),
            "remove" => self.ground.host.remove_server(name),
            verb => self
                .ground
                .host
                .change_server(name, "is_enabled", verb == "enable"),
        }
    }

    /// `user`: "" for the system's defaults.
    fn credentials(&self, user: &str, server: &str, key: &str) {
        let fields = json!({"KEY": key});
        match (self.is_host(), user) {
            (true, "") => self.ground.default_credentials(server, fields),
            (true, user) => self.ground.credentials(user, server, fields),
            (false, "") => self.store(
                &["credential", "set", server, "--default"],
                &fields.to_string(),
            ),
            (false, user) => self.store(
                &["credential", "set", server, "--user", user],
                &fields.to_string(),
            ),
        }
    }

    fn remove_credentials(&self, user: &str, server: &str) {
        if self.is_host() {
            return self.ground.host.remove_user_credentials(user, server);
        }
        self.store(&["credential", "remove", server, "--user", user], "");
    }

    fn daemon(&self) -> Daemon {
        let command = match &self.plane {
            Plane::Embedded | Plane::Shared(_) => self.on_own_store(),
            Plane::Host => self.ground.command(),
            Plane::Fleet(fleet) => {
                let mut command = self.ground.embedded_command();
                command.env("API_BASE", &fleet.0.base);
                command
            }
        };
        Daemon::start(&self.ground, command)
    }

    fn ask(&self, daemon: &mut Daemon, user: &str, params: Value) -> Answer {
        let Plane::Fleet(_) = &self.plane else {
            return daemon.ask(user, params);
        };
        let claims = json!({"sub": user, "exp": in_seconds(600)});
        let token = Signer::hs256().token(&claims);
        let task = daemon.command(json!({
            "command": "invoke", "params": params,
            "user": {"userId": user, "accessToken": token},
        }));
        daemon.answer(&task)
    }

    fn whoami(&self, daemon: &mut Daemon, user: &str) -> Answer {
        self.ask(daemon, user, call("books", "whoami", json!({})))
    }
}

#[test]
fn each_users_own_credentials_win_over_the_defaults() {
    for stage in stages() {
        println!("{}", stage.name());
        stage.define("books", |row| {
            row.token("KEY");
        });
        stage.credentials("", "books", "the default");
        stage.credentials("ann", "books", "ann's");
        stage.credentials("Ann", "books", "another Ann's");
        let mut daemon = stage.daemon();
        for (user, key) in [
            ("ann", "ann's"),
            ("bob", "the default"),
            ("Ann", "another Ann's"),
        ] {
            assert_eq!(stage.whoami(&mut daemon, user).content(), key);
        }
        daemon.finish();
    }
}

#[test]
fn the_next_command_sees_every_change() {
    for stage in stages() {
        println!("{}", stage.name());
        stage.define("books", |row| {
            row.token("KEY");
        });
        let mut daemon = stage.daemon();
        let needed = stage.whoami(&mut daemon, "ann");
        needed.failure("credentials_required");
        for key in ["one", "two"] {
            stage.credentials("ann", "books", key);
            assert_eq!(stage.whoami(&mut daemon, "ann").content(), key);
        }
        stage.remove_credentials("ann", "books");
        stage
            .whoami(&mut daemon, "ann")
            .failure("credentials_required");
        stage.credentials("ann", "books", "three");
        for (verb, code) in [
            ("disable", "server_disabled"),
            ("enable", ""),
            ("remove", "server_not_found"),
        ] {
            stage.verb(verb, "books");
            let answer = stage.whoami(&mut daemon, "ann");
            match code {
                "" => assert_eq!(answer.content(), "three"),
                code => drop(answer.failure(code)),
            }
        }
        daemon.finish();
    }
}

#[test]
fn servers_are_listed_alike_and_found_by_folded_names() {
    let mut listed = Vec::new();
    for stage in stages() {
        println!("{}", stage.name());
        for name in ["alpha", "My Books", "zeta"] {
            stage.define(name, |row| {
                row.set("is_public", name != "zeta")
                    .set("display_name", format!("{name} ä🦀"))
                    .set("description", "a\nb \"c\" \\d");
            });
        }
        stage.verb("disable", "alpha");
        let mut daemon = stage.daemon();
        stage
            .ask(&mut daemon, "ann", call("my-books", "echo", json!({})))
            .ok();
        let answer = stage.ask(&mut daemon, "ann", json!({"action": "list_servers"}));
        let mut servers = answer.ok()["servers"].clone();
        for server in servers.as_array_mut().expect("servers") {
            let members = server.as_object_mut().expect("an object");
            members.retain(|name, _| {
                [
                    "name",
                    "display_name",
                    "description",
                    "status",
                    "is_public",
                    "is_enabled",
                    "transport_type",
                ]
                .contains(&name.as_str())
            });
        }
        servers
            .as_array_mut()
            .expect("servers")
            .sort_by_key(|server| server["name"].to_string());
        listed.push((stage.name(), servers));
        daemon.finish();
    }
    for (name, servers) in &listed[1..] {
        assert_eq!(servers, &listed[0].1, "{name} and {}", listed[0].0);
    }
}
