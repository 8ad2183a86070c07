//! What surrounds the daemon: its settings, its store, its kernel.

use rustix::process::{Resource, getrlimit};

use super::{Finding, Level};
use crate::cli::descriptors_needed;
use crate::config_api::{Inspection, inspect};
use crate::model::settings::{Examined, Settings};
use crate::os::{self, Landlock};

/// Where values come from, and every fault.
pub(super) fn settings(examined: &Examined) -> Vec<Finding> {
    const AREA: &str = "settings";
    let file = match &examined.file {
        Some(path) => path.display().to_string(),
        None => "no settings file".to_owned(),
    };
    let mut findings = vec![Finding::new(AREA, "file", Level::Ok, file)];
    for (position, origin) in examined.origins.iter().enumerate() {
        let beaten = examined.origins[position + 1..]
            .iter()
            .find(|later| later.name == origin.name);
        let text = match beaten {
            Some(later) => format!("from {}, beaten by {}", origin.source, later.source),
            None => format!("from {}", origin.source),
        };
        findings.push(Finding::new(AREA, &origin.name, Level::Ok, text));
    }
    let faults = examined.faults.0.iter();
    findings.extend(faults.map(|fault| Finding::new(AREA, "fault", Level::Error, fault.as_str())));
    findings
}

/// What is to be said of the store, and whether definitions can be read from it as it is.
pub(super) async fn store(settings: &Settings) -> (Vec<Finding>, bool) {
    const AREA: &str = "store";
    if let Some(base) = &settings.config.api_base {
        let host = url::Url::parse(base).map(|url| url.origin().ascii_serialization());
        let text = format!(
            "not used: definitions come from the config API {}",
            host.unwrap_or_else(|_| "of config.api_base".to_owned())
        );
        return (vec![Finding::new(AREA, "", Level::Note, text)], true);
    }
    let Inspection {
        database,
        is_there,
        schema,
        newest_schema,
        key,
        open_to_others,
    } = inspect(&settings.store).await;
    let is_readable = matches!(schema, Ok(Some(version)) if version == newest_schema)
        && matches!(key, Ok(Some(_)));
    let shown = database.unwrap_or_else(|_| "store.url".to_owned());
    let directory = settings.store.data_dir.display();
    let mut findings = vec![Finding::new(
        AREA,
        "data directory",
        Level::Ok,
        directory.to_string(),
    )];
    findings.push(match schema {
        Ok(Some(version)) if version == newest_schema => {
            Finding::new(AREA, "database", Level::Ok, format!("{shown}, schema {version}"))
        }
        Ok(Some(version)) => {
            let text = format!(
                "{shown} has schema {version}; the next start brings it to {newest_schema}, after which older versions refuse it"
            );
            Finding::new(AREA, "database", Level::Warning, text)
        }
        Ok(None) => {
            let text = format!("{shown} is not there yet: the first start makes it");
            Finding::new(AREA, "database", Level::Note, text)
        }
        Err(reason) => Finding::new(AREA, "database", Level::Error, format!("{shown}: {reason}")),
    });
    findings.push(match key {
        Ok(Some(source)) => Finding::new(AREA, "key", Level::Ok, source),
        Ok(None) if is_there => {
            let text = format!(
                "there is no store.key in {directory}: credentials that are stored cannot be read without the key they were stored with"
            );
            Finding::new(AREA, "key", Level::Error, text)
        }
        Ok(None) => Finding::new(AREA, "key", Level::Note, "not there yet: the first start makes it"),
        Err(reason) => Finding::new(AREA, "key", Level::Error, reason),
    });
    findings.extend(open_to_others.into_iter().map(|(path, mode)| {
        let text = format!("mode {mode:04o}, open to other users: the next start takes that back");
        Finding::new(AREA, &path.display().to_string(), Level::Warning, text)
    }));
    (findings, is_readable)
}

/// What the kernel offers, and its limits against what a full pool needs.
pub(super) fn kernel(settings: &Settings) -> Vec<Finding> {
    let needed = descriptors_needed(&settings.pool);
    let mut findings = vec![
        landlock(),
        subreaper(),
        children_lists(),
        limit(
            "open files",
            getrlimit(Resource::Nofile).current,
            needed,
            "raise it (`ulimit -Hn`, LimitNOFILE=)",
        ),
        limit(
            "processes of this user",
            getrlimit(Resource::Nproc).current,
            needed,
            "raise it (`ulimit -Hu`, LimitNPROC=)",
        ),
    ];
    let limits = os::process_limits().into_iter();
    findings.extend(limits.map(|it| limit(it.name, it.value, needed, it.advice)));
    findings
}

fn found(about: &str, level: Level, text: impl Into<String>) -> Finding {
    Finding::new("kernel", about, level, text)
}

fn landlock() -> Finding {
    const ABOUT: &str = "Landlock";
    let landlock = Landlock::of_this_kernel();
    match landlock {
        Landlock {
            abi,
            is_complete: true,
        } => found(
            ABOUT,
            Level::Ok,
            format!("ABI {abi}, with the scope of signals"),
        ),
        Landlock { abi: 0, .. } => found(
            ABOUT,
            Level::Warning,
            "there is none: servers can read and signal each other's processes (Linux 6.12 with landlock among its security modules keeps them apart)",
        ),
        Landlock { abi, .. } => found(
            ABOUT,
            Level::Warning,
            format!(
                "ABI {abi}: servers can signal each other's processes (ABI 6, of Linux 6.12, keeps them apart)"
            ),
        ),
    }
}

fn subreaper() -> Finding {
    const ABOUT: &str = "child subreaper";
    match os::adopt_orphans() {
        Ok(true) => found(ABOUT, Level::Ok, "there is"),
        Ok(false) => found(
            ABOUT,
            Level::Warning,
            "this system has none: what servers leave behind in groups of their own cannot be ended",
        ),
        Err(error) => found(
            ABOUT,
            Level::Error,
            format!("refused ({error}): what servers leave behind cannot be ended"),
        ),
    }
}

fn children_lists() -> Finding {
    const ABOUT: &str = "lists of children";
    if os::lists_children() {
        return found(ABOUT, Level::Ok, "there are");
    }
    found(
        ABOUT,
        Level::Warning,
        "there are none (on Linux CONFIG_PROC_CHILDREN makes them): processes that left their server's group are not ended before the daemon",
    )
}

/// `None`: there is no such limit.
fn limit(about: &str, limit: Option<u64>, needed: u64, advice: &str) -> Finding {
    match limit {
        None => found(about, Level::Ok, "no limit"),
        Some(limit) if limit >= needed => found(
            about,
            Level::Ok,
            format!("{limit}; a full pool needs {needed}"),
        ),
        Some(limit) => found(
            about,
            Level::Warning,
            format!(
                "{limit}, but a full pool needs {needed} (4 x pool.max_connections + 1024): {advice}, or lower pool.max_connections"
            ),
        ),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_limit_below_the_need_is_a_warning_that_says_what_to_do() {
        let short = limit("open files", Some(1024), 2048, "raise it");
        assert_eq!(short.level, Level::Warning);
        assert!(short.text.contains("needs 2048") && short.text.contains("raise it"));
        assert_eq!(limit("open files", Some(2048), 2048, "").level, Level::Ok);
        assert_eq!(limit("open files", None, 2048, "").level, Level::Ok);
    }
}
