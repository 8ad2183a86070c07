use std::collections::HashMap;
use std::io::{Error, ErrorKind};

use super::*;

/// An environment that is not this process's.
#[derive(Default)]
struct Fake {
    variables: HashMap<&'static str, &'static str>,
    files: HashMap<&'static str, &'static str>,
}

impl Lookup for Fake {
    fn variable(&self, name: &str) -> Option<OsString> {
        self.variables.get(name).map(OsString::from)
    }

    fn file(&self, path: &Path) -> std::io::Result<String> {
        let path = path.to_str().ok_or(ErrorKind::InvalidInput)?;
        let text = self.files.get(path).map(|text| (*text).to_owned());
        text.ok_or_else(|| Error::from(ErrorKind::NotFound))
    }
}

const FILE: &str = "/home/ann/.config/mcp-client/config.toml";

fn fake(variables: &[(&'static str, &'static str)], file: &'static str) -> Fake {
    let mut fake = Fake::default();
    fake.variables.insert("HOME", "/home/ann");
    fake.variables.extend(variables.iter().copied());
    fake.files.insert(FILE, file);
    fake
}

fn load(fake: &Fake, flags: &[(&str, &str)]) -> Result<Settings, Faults> {
    let flag = |(name, value): &(&str, &str)| Flag {
        shown: format!("--set {name}"),
        name: (*name).to_owned(),
        value: (*value).to_owned(),
    };
    Settings::load(Sources {
        lookup: fake,
        file: None,
        data_dir: None,
        flags: flags.iter().map(flag).collect(),
    })
}

fn loaded(variables: &[(&'static str, &'static str)], file: &'static str) -> Settings {
    load(&fake(variables, file), &[]).expect("settings without faults")
}

fn faults(variables: &[(&'static str, &'static str)], file: &'static str) -> Vec<String> {
    load(&fake(variables, file), &[]).expect_err("faults").0
}

#[test]
fn every_default_can_be_read() {
    let settings = Settings::default();
    assert_eq!(settings.daemon.max_line, 16 << 20);
    assert_eq!(settings.daemon.exit_timeout, Duration::from_secs(4));
    assert_eq!(settings.pool.call_hard_cap, Duration::from_secs(600));
    assert_eq!(settings.config.max_stale, Duration::from_secs(600));
    assert!(settings.config.api_base.is_none() && settings.store.url.is_none());
    assert!(settings.stdio.inherit_env.is_empty());
    assert_eq!(settings.log.level, "warn");
}

#[test]
fn the_documented_file_shows_every_setting_and_its_default() {
    let file = include_str!("../../../config/default.toml");
    assert_eq!(
        file,
        documentation(),
        "bring config/default.toml up to date"
    );
    let read = loaded(&[], file);
    let mut defaults = Settings::default();
    defaults.store.data_dir = "/home/ann/.local/share/mcp-client".into();
    defaults.stdio.environment = vec![("HOME".into(), "/home/ann".into())];
    assert_eq!(format!("{read:?}"), format!("{defaults:?}"));
}

/// A table for each section, as in docs/settings.md.
fn tables() -> String {
    let mut text = String::new();
    let mut section = "";
    for setting in TABLE {
        if setting.section != section {
            section = setting.section;
            text += &format!(
                "\n## {section}\n\n| setting | variable | default | what it is |\n|---|---|---|---|\n"
            );
        }
        let default = match setting.default {
            "" => "none".to_owned(),
            default => format!("`{default}`"),
        };
        let doc = setting.doc.concat();
        let (key, variable) = (setting.key, setting.variable());
        text += &format!("| `{key}` | `{variable}` | {default} |{doc} |\n");
    }
    text
}

#[test]
fn the_page_of_settings_shows_every_one_as_it_is() {
    let page = include_str!("../../../docs/settings.md");
    let tables = tables();
    assert!(
        page.ends_with(&tables),
        "docs/settings.md must end with:\n{tables}"
    );
}

#[test]
fn a_child_inherits_a_few_variables_and_those_that_are_named() {
    let variables = [
        ("PATH", "/bin"),
        ("LC_CTYPE", "C.UTF-8"),
        ("DB_PASSWORD", "hidden"),
        ("INTERNAL_TOKEN", "hidden"),
        ("HTTPS_PROXY", "http://proxy"),
        ("MCP_CLIENT_STDIO_INHERIT_ENV", "HTTPS_PROXY,SSL_CERT_FILE"),
    ];
    let inherited = loaded(&variables, "").stdio.environment;
    let names = inherited
        .iter()
        .map(|(name, _)| name.as_str())
        .collect::<Vec<_>>();
    assert_eq!(names, ["PATH", "HOME", "LC_CTYPE", "HTTPS_PROXY"]);
}

#[test]
fn flag_beats_environment_beats_file_beats_default() {
    let file =
        "[daemon]\ndrain_timeout = \"1s\"\nexit_timeout = \"1s\"\nbarrier_timeout = \"1s\"\n";
    let variables = [
        ("MCP_CLIENT_DAEMON_DRAIN_TIMEOUT", "2s"),
        ("MCP_CLIENT_DAEMON_EXIT_TIMEOUT", "2s"),
    ];
    let flags = [("daemon.drain_timeout", "3s")];
    let daemon = load(&fake(&variables, file), &flags)
        .expect("settings")
        .daemon;
    let seconds = [
        daemon.drain_timeout,
        daemon.exit_timeout,
        daemon.barrier_timeout,
    ];
    assert_eq!(seconds.map(|duration| duration.as_secs()), [3, 2, 1]);
    assert_eq!(daemon.max_line, 16 << 20);
}

#[test]
fn names_of_hosts_in_the_field_are_taken_and_ours_win() {
    let settings = loaded(
        &[
            ("API_BASE", "http://host:3000"),
            ("INTERNAL_TOKEN", "from-the-host"),
            ("MCP_CLIENT_CONFIG_INTERNAL_TOKEN", "ours"),
        ],
        "",
    );
    assert_eq!(
        settings.config.api_base.as_deref(),
        Some("http://host:3000")
    );
    assert_eq!(settings.config.internal_token, Some(Secret::new("ours")));
}

#[test]
fn every_setting_is_read_from_its_variable() {
    for setting in TABLE {
        let mut fake = fake(&[], "");
        let (value, expected) = match setting.kind {
            "duration" => ("7m", "420s"),
            "size" => ("7KiB", "7168"),
            "count" => ("7", "7"),
            "switch" => ("true", "true"),
            "naming" => ("double", "Double"),
            "format" => ("json", "Json"),
            "filter" => ("debug", "\"debug\""),
            "list" => ("A, B", "[\"A\", \"B\"]"),
            "text" => ("x", "Some(\"x\")"),
            "secret" => ("x", "Some(***)"),
            "address" => ("[::1]:7", "[::1]:7"),
            "loopback" => ("[::1]:7", "Some([::1]:7)"),
            other => panic!("no value for the reader {other}"),
        };
        let name: &'static str = setting.variable().leak();
        fake.variables.insert(name, value);
        let settings = format!("{:?}", load(&fake, &[]).expect("settings"));
        let member = format!("{}: {expected}", setting.key);
        assert!(
            settings.contains(&member),
            "{name}: no {member} in {settings}"
        );
    }
}

#[test]
fn all_faults_are_told_together() {
    let file = "surprise = 1\n[daemon]\nmax_line = 16\ncolour = \"red\"\n[pool]\nmax_per_user = 0.5\n[stray]\n";
    let variables = [
        ("MCP_CLIENT_DAEMON_DRAIN_TIMEOUT", "30"),
        ("MCP_CLIENT_LOG_FORMAT", "xml"),
    ];
    let flags = [("store.url", "postgres://u:hunter22@db"), ("no.such", "1")];
    let Faults(faults) = load(&fake(&variables, file), &flags).expect_err("faults");
    let has = |part: &str| faults.iter().any(|fault| fault.contains(part));
    for part in [
        "no section [surprise]",
        "daemon.max_line must be a whole number with a unit",
        "no setting daemon.colour",
        "pool.max_per_user must be",
        "no section [stray]",
        "MCP_CLIENT_DAEMON_DRAIN_TIMEOUT must be a whole number with a unit (ms, s, m, h, d)",
        "MCP_CLIENT_LOG_FORMAT must be text or json",
        "MCP_CLIENT_STORE_URL",
        "no setting \"no.such\"",
    ] {
        assert!(has(part), "no {part:?} in {faults:#?}");
    }
    assert_eq!(faults.len(), 9, "{faults:#?}");
    assert!(!has("hunter22"));
}

#[test]
fn a_broken_file_is_told_by_its_line_and_never_quoted() {
    let faults = faults(&[], "[config]\ninternal_token = \"hunter22\" x\n");
    assert_eq!(faults.len(), 1);
    assert!(
        faults[0].starts_with(&format!("{FILE}, line 2: ")),
        "{faults:?}"
    );
    assert!(!faults[0].contains("hunter22"), "{faults:?}");
}

#[test]
fn a_file_that_was_named_must_exist_and_the_usual_one_need_not() {
    let mut none = fake(&[], "");
    none.files.clear();
    assert!(load(&none, &[]).is_ok());
    none.variables
        .insert("MCP_CLIENT_CONFIG", "/etc/absent.toml");
    let Faults(faults) = load(&none, &[]).expect_err("a fault");
    assert!(
        faults[0].starts_with("/etc/absent.toml cannot be read"),
        "{faults:?}"
    );
}

#[test]
fn values_carry_a_unit_and_stay_in_range() {
    let read = |text: &str| read::duration(Given::Text(text.to_owned()));
    assert_eq!(read("500ms"), Ok(Duration::from_millis(500)));
    assert_eq!(read(" 30 s "), Ok(Duration::from_secs(30)));
    assert_eq!(read("0s"), Ok(Duration::ZERO));
    for wrong in [
        "",
        "s",
        "0",
        "-1s",
        "1.5s",
        "1w",
        "400d",
        "99999999999999999999s",
        "30S",
    ] {
        assert!(read(wrong).is_err(), "{wrong:?} was taken");
    }
    for wrong in ["0B", "16", "1mib"] {
        assert!(
            read::size(Given::Text(wrong.to_owned())).is_err(),
            "{wrong:?} was taken"
        );
    }
}

#[test]
fn the_data_directory_follows_its_variable_then_xdg_then_home() {
    let dir = |variables: &[(&'static str, &'static str)]| loaded(variables, "").store.data_dir;
    let xdg = ("XDG_DATA_HOME", "/xdg");
    assert_eq!(dir(&[]), Path::new("/home/ann/.local/share/mcp-client"));
    assert_eq!(dir(&[xdg]), Path::new("/xdg/mcp-client"));
    assert_eq!(dir(&[("XDG_DATA_HOME", "relative")]), dir(&[]));
    assert_eq!(
        dir(&[xdg, ("MCP_CLIENT_DATA_DIR", "/own")]),
        Path::new("/own")
    );
}

#[test]
fn a_variable_set_to_nothing_counts_as_not_set() {
    let settings = loaded(
        &[("API_BASE", ""), ("MCP_CLIENT_POOL_IDLE_TIMEOUT", " ")],
        "",
    );
    assert!(settings.config.api_base.is_none());
    assert_eq!(settings.pool.idle_timeout, Duration::from_secs(600));
}
