//! Readers: one value, as written, to what it means. Their errors read after the setting's name.

use std::net::SocketAddr;
use std::time::Duration;

use super::{LogFormat, Naming};
use crate::model::secret::Secret;

/// A value as written in the environment, a flag or the file.
#[derive(Clone, Debug)]
pub enum Given {
    Text(String),
    List(Vec<String>),
}

type Read<T> = Result<T, String>;

/// Far beyond any use, and small enough to be added to any point in time.
const LONGEST: Duration = Duration::from_secs(366 * 24 * 3600);

const DURATION_UNITS: &[(&str, u64)] = &[
    ("ms", 1),
    ("s", 1_000),
    ("m", 60_000),
    ("h", 3_600_000),
    ("d", 86_400_000),
];

const SIZE_UNITS: &[(&str, u64)] = &[
    ("B", 1),
    ("KiB", 1 << 10),
    ("MiB", 1 << 20),
    ("GiB", 1 << 30),
    ("kB", 1_000),
    ("MB", 1_000_000),
    ("GB", 1_000_000_000),
];

/// A default of the table; that each can be read is tested.
pub(super) fn default_of<T>(reader: fn(Given) -> Read<T>, default: &str) -> T {
    match reader(Given::Text(default.to_owned())) {
        Ok(value) => value,
        Err(reason) => unreachable!("the default {default:?} {reason}"),
    }
}

fn one(given: Given) -> Read<String> {
    match given {
        Given::Text(text) => Ok(text.trim().to_owned()),
        Given::List(_) => Err("takes one value, not a list".to_owned()),
    }
}

/// `number unit`, the unit one of `units`, as a multiple of the smallest.
fn with_unit(given: Given, units: &[(&str, u64)], example: &str) -> Read<u64> {
    let text = one(given)?;
    let names: Vec<_> = units.iter().map(|(name, _)| *name).collect();
    let fault = || {
        let names = names.join(", ");
        format!("must be a whole number with a unit ({names}), as in {example}; it is {text:?}")
    };
    let digits = text.bytes().take_while(u8::is_ascii_digit).count();
    let (number, unit) = text.split_at(digits);
    let scale = units.iter().find(|(name, _)| *name == unit.trim_start());
    let (_, scale) = scale.ok_or_else(fault)?;
    let number: u64 = number.parse().map_err(|_| fault())?;
    number.checked_mul(*scale).ok_or_else(fault)
}

/// # Errors
/// No unit, no whole number, or more than a year.
pub(super) fn duration(given: Given) -> Read<Duration> {
    let value = Duration::from_millis(with_unit(given, DURATION_UNITS, "30s")?);
    if value > LONGEST {
        return Err("must not be longer than a year".to_owned());
    }
    Ok(value)
}

pub(super) fn size(given: Given) -> Read<usize> {
    let value = with_unit(given, SIZE_UNITS, "16MiB")?;
    match usize::try_from(value) {
        Ok(0) | Err(_) => Err("is out of range".to_owned()),
        Ok(value) => Ok(value),
    }
}

pub(super) fn count(given: Given) -> Read<usize> {
    let text = one(given)?;
    match text.parse() {
        Ok(0) | Err(_) => Err(format!("must be a whole number above 0; it is {text:?}")),
        Ok(value) => Ok(value),
    }
}

pub(super) fn switch(given: Given) -> Read<bool> {
    match one(given)?.as_str() {
        "true" | "1" | "yes" | "on" => Ok(true),
        "false" | "0" | "no" | "off" => Ok(false),
        other => Err(format!("must be true or false; it is {other:?}")),
    }
}

pub(super) fn text(given: Given) -> Read<Option<String>> {
    Ok(Some(one(given)?).filter(|text| !text.is_empty()))
}

/// # Errors
/// No address with a port.
pub(super) fn address(given: Given) -> Read<SocketAddr> {
    let text = one(given)?;
    text.parse()
        .map_err(|_| format!("must be an address with a port, as in 0.0.0.0:8760; it is {text:?}"))
}

/// # Errors
/// No address with a port, or one that others than this machine can reach.
pub(super) fn loopback(given: Given) -> Read<Option<SocketAddr>> {
    let Some(text) = text(given)? else {
        return Ok(None);
    };
    match text.parse::<SocketAddr>() {
        Ok(address) if address.ip().is_loopback() => Ok(Some(address)),
        Ok(_) => Err(format!(
            "must be an address of this machine alone (127.0.0.1 or [::1]); it is {text:?}"
        )),
        Err(_) => Err(format!(
            "must be an address with a port, as in 127.0.0.1:9464; it is {text:?}"
        )),
    }
}

/// Never says what it was given.
pub(super) fn secret(given: Given) -> Read<Option<Secret>> {
    Ok(text(given)?.map(Secret::new))
}

pub(super) fn list(given: Given) -> Read<Vec<String>> {
    let parts = match given {
        Given::Text(text) => text.split(',').map(str::to_owned).collect(),
        Given::List(parts) => parts,
    };
    let trimmed = parts.iter().map(|part| part.trim().to_owned());
    Ok(trimmed.filter(|part| !part.is_empty()).collect())
}

pub(super) fn naming(given: Given) -> Read<Naming> {
    match one(given)?.as_str() {
        "single" => Ok(Naming::Single),
        "double" => Ok(Naming::Double),
        other => Err(format!("must be single or double; it is {other:?}")),
    }
}

pub(super) fn filter(given: Given) -> Read<String> {
    let text = one(given)?;
    match text.parse::<tracing_subscriber::filter::Targets>() {
        Ok(_) => Ok(text),
        Err(_) => Err(format!(
            "must be a level (error, warn, info, debug, trace) or a filter such as mcp_client=debug; it is {text:?}"
        )),
    }
}

pub(super) fn format(given: Given) -> Read<LogFormat> {
    match one(given)?.as_str() {
        "text" => Ok(LogFormat::Text),
        "json" => Ok(LogFormat::Json),
        other => Err(format!("must be text or json; it is {other:?}")),
    }
}
