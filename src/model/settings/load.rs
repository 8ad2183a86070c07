//! Flag beats environment beats file beats default. All faults are reported together.

use std::fmt;
use std::path::{Path, PathBuf};

use super::{Given, Lookup, Setting, Settings, TABLE};

/// Everything settings are read from.
pub struct Sources<'a> {
    pub lookup: &'a dyn Lookup,
    /// `--config`.
    pub file: Option<PathBuf>,
    /// `--data-dir`.
    pub data_dir: Option<PathBuf>,
    pub flags: Vec<Flag>,
}

/// A value from the command line.
#[derive(Clone, Debug)]
pub struct Flag {
    /// As typed: `--naming`.
    pub shown: String,
    /// `section.key`.
    pub name: String,
    pub value: String,
}

/// Everything that is wrong with the settings; a sentence each.
#[derive(Debug, PartialEq, Eq)]
pub struct Faults(pub Vec<String>);

impl fmt::Display for Faults {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0.join("\n"))
    }
}

impl std::error::Error for Faults {}

/// Names under which hosts in the field give these settings.
const FIELD_NAMES: &[(&str, &str)] = &[
    ("config.api_base", "API_BASE"),
    ("config.internal_token", "INTERNAL_TOKEN"),
];

/// What a server started as a child inherits: enough to run, and nothing that could be a secret.
const CHILD_VARIABLES: &[&str] = &[
    "PATH",
    "HOME",
    "USER",
    "LOGNAME",
    "SHELL",
    "LANG",
    "LANGUAGE",
    "LC_ALL",
    "LC_COLLATE",
    "LC_CTYPE",
    "LC_MESSAGES",
    "LC_MONETARY",
    "LC_NUMERIC",
    "LC_TIME",
    "TZ",
    "TMPDIR",
    "TERM",
];

/// Where a setting's value comes from: the last one of a name is in force.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Origin {
    /// `section.key`.
    pub name: String,
    /// The variable, the option or the file.
    pub source: String,
}

/// Settings as far as they can be read, with all that is to be known of them.
#[derive(Debug)]
pub struct Examined {
    pub settings: Settings,
    /// The settings file that was read.
    pub file: Option<PathBuf>,
    pub origins: Vec<Origin>,
    /// In the order file, environment, flags.
    pub faults: Faults,
}

impl Settings {
    /// Reads all sources.
    ///
    /// # Errors
    /// Every fault of every source, in the order file, environment, flags.
    pub fn load(sources: Sources<'_>) -> Result<Self, Faults> {
        let examined = Self::examine(sources);
        if examined.faults.0.is_empty() {
            Ok(examined.settings)
        } else {
            Err(examined.faults)
        }
    }

    /// Reads all sources as far as that is possible.
    pub fn examine(sources: Sources<'_>) -> Examined {
        let mut loading = Loading {
            lookup: sources.lookup,
            settings: Self::default(),
            read: None,
            origins: Vec::new(),
            faults: Vec::new(),
        };
        loading.file(sources.file);
        loading.environment();
        loading.flags(&sources.flags);
        loading.data_dir(sources.data_dir);
        loading.child_environment();
        Examined {
            settings: loading.settings,
            file: loading.read,
            origins: loading.origins,
            faults: Faults(loading.faults),
        }
    }
}

struct Loading<'a> {
    lookup: &'a dyn Lookup,
    settings: Settings,
    read: Option<PathBuf>,
    origins: Vec<Origin>,
    faults: Vec<String>,
}

impl Loading<'_> {
    fn set(&mut self, setting: &Setting, given: Given, shown: &str) {
        match (setting.read)(&mut self.settings, given) {
            Ok(()) => self.origins.push(Origin {
                name: setting.name(),
                source: shown.to_owned(),
            }),
            Err(reason) => self.faults.push(format!("{shown} {reason}")),
        }
    }

    /// A variable's text; set to nothing counts as not set.
    fn variable(&mut self, name: &str) -> Option<String> {
        let value = self.lookup.variable(name)?;
        match value.into_string() {
            Ok(text) => Some(text).filter(|text| !text.trim().is_empty()),
            Err(_) => {
                self.faults.push(format!("{name} is not UTF-8"));
                None
            }
        }
    }

    fn environment(&mut self) {
        for setting in TABLE {
            let own = setting.variable();
            let field = FIELD_NAMES.iter().find(|(name, _)| *name == setting.name());
            let names = field.map(|(_, variable)| (*variable).to_owned());
            for name in names.into_iter().chain([own]) {
                if let Some(text) = self.variable(&name) {
                    self.set(setting, Given::Text(text), &name);
                }
            }
        }
    }

    fn flags(&mut self, flags: &[Flag]) {
        for flag in flags {
            match Setting::find(&flag.name) {
                Some(setting) if setting.is_secret() => self.faults.push(format!(
                    "{} would show a secret in the process list: use {} or the settings file",
                    flag.shown,
                    setting.variable()
                )),
                Some(setting) => self.set(setting, Given::Text(flag.value.clone()), &flag.shown),
                None => self.faults.push(format!(
                    "{}: there is no setting {:?}",
                    flag.shown, flag.name
                )),
            }
        }
    }

    fn file(&mut self, flag: Option<PathBuf>) {
        let named = flag.or_else(|| self.variable("MCP_CLIENT_CONFIG").map(PathBuf::from));
        let must_exist = named.is_some();
        let Some(path) =
            named.or_else(|| self.user_dir("XDG_CONFIG_HOME", ".config", "config.toml"))
        else {
            return;
        };
        match self.lookup.file(&path) {
            Ok(text) => {
                self.table(&path, &text);
                self.read = Some(path);
            }
            Err(error) if error.kind() == std::io::ErrorKind::NotFound && !must_exist => {}
            Err(error) => self
                .faults
                .push(format!("{} cannot be read: {error}", path.display())),
        }
    }

    fn table(&mut self, path: &Path, text: &str) {
        let shown = path.display();
        match text.parse::<toml::Table>() {
            // The crate's own rendering quotes the line, which may hold a secret.
            Err(error) => {
                let before = error.span().and_then(|span| text.get(..span.start));
                let line = before.map_or(1, |before| before.matches('\n').count() + 1);
                self.faults
                    .push(format!("{shown}, line {line}: {}", error.message()));
            }
            Ok(table) => {
                for (section, value) in table {
                    self.section(&shown.to_string(), &section, value);
                }
            }
        }
    }

    fn section(&mut self, path: &str, section: &str, value: toml::Value) {
        if !TABLE.iter().any(|setting| setting.section == section) {
            self.faults
                .push(format!("{path}: there is no section [{section}]"));
            return;
        }
        let toml::Value::Table(members) = value else {
            self.faults
                .push(format!("{path}: {section} must be a section [{section}]"));
            return;
        };
        for (key, value) in members {
            let name = format!("{section}.{key}");
            let shown = format!("{path}: {name}");
            match (Setting::find(&name), given(value)) {
                (None, _) => self
                    .faults
                    .push(format!("{path}: there is no setting {name}")),
                (Some(setting), Some(given)) => self.set(setting, given, &shown),
                (Some(_), None) => self.faults.push(format!(
                    "{shown} must be a text, a number, true, false or a list of texts"
                )),
            }
        }
    }

    fn child_environment(&mut self) {
        let further = self.settings.stdio.inherit_env.clone();
        let names = CHILD_VARIABLES
            .iter()
            .map(|name| (*name).to_owned())
            .chain(further);
        let held = names.filter_map(|name| {
            let value = self.lookup.variable(&name)?.into_string().ok()?;
            Some((name, value))
        });
        self.settings.stdio.environment = held.collect();
    }

    fn data_dir(&mut self, flag: Option<PathBuf>) {
        let named = flag.or_else(|| self.variable("MCP_CLIENT_DATA_DIR").map(PathBuf::from));
        match named.or_else(|| self.user_dir("XDG_DATA_HOME", ".local/share", "")) {
            Some(path) => self.settings.store.data_dir = path,
            None => self
                .faults
                .push("no data directory: set MCP_CLIENT_DATA_DIR, or HOME".to_owned()),
        }
    }

    /// `$XDG/mcp-client/{file}`, else `~/{fallback}/mcp-client/{file}`. XDG paths must be absolute to count.
    fn user_dir(&mut self, xdg: &str, fallback: &str, file: &str) -> Option<PathBuf> {
        let xdg = self
            .variable(xdg)
            .map(PathBuf::from)
            .filter(|path| path.is_absolute());
        let base = match xdg {
            Some(path) => path,
            None => Path::new(&self.variable("HOME")?).join(fallback),
        };
        let own = base.join("mcp-client");
        Some(if file.is_empty() { own } else { own.join(file) })
    }
}

fn given(value: toml::Value) -> Option<Given> {
    match value {
        toml::Value::String(text) => Some(Given::Text(text)),
        toml::Value::Integer(number) => Some(Given::Text(number.to_string())),
        toml::Value::Boolean(switch) => Some(Given::Text(switch.to_string())),
        toml::Value::Array(items) => {
            let texts = items.into_iter().map(|item| match item {
                toml::Value::String(text) => Some(text),
                _ => None,
            });
            texts.collect::<Option<_>>().map(Given::List)
        }
        _ => None,
    }
}
