//! A catalog as the host sees it: rendered tool entries and the table of injected names. Made once
//! for a catalog and shared by every command, for a host may list thousands of tools at a time.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, OnceLock, Weak};

use bytes::Bytes;
use serde_json::json;
use serde_json::value::RawValue;

use super::members::Members;
use super::view::{View, lock};
use crate::catalog::{Catalog, Tool};
use crate::model::resolve::{PoolKey, ServerEntry, Target};
use crate::model::secret::CredentialSource;
use crate::model::settings::Naming;
use crate::model::unseen;

/// Members of an entry that are ours: a server's own of the same name is dropped.
const OURS: [&str; 11] = [
    "name",
    "description",
    "inputSchema",
    "server_name",
    "serverName",
    "original_name",
    "is_public",
    "server_id",
    "user_id",
    "credential_source",
    "suspicious",
];

pub(super) struct Listing {
    catalog: Weak<Catalog>,
    origin: Origin,
    /// The entries, a comma between them.
    pub entries: Bytes,
    single: OnceLock<HashMap<String, usize>>,
    double: OnceLock<HashMap<String, usize>>,
}

/// What the entries say besides what the catalog holds.
#[derive(PartialEq, Eq)]
struct Origin {
    names: u64,
    server_name: Arc<str>,
    is_public: bool,
    source: Option<CredentialSource>,
}

/// A catalog with the circumstances in which it is shown.
pub(super) struct Shown<'a> {
    pub view: &'a View,
    pub entry: &'a ServerEntry,
    pub target: &'a Target,
    pub catalog: &'a Arc<Catalog>,
}

impl Shown<'_> {
    fn origin(&self) -> Origin {
        Origin {
            names: self.view.names,
            server_name: self.entry.definition.name.clone(),
            is_public: self.entry.definition.is_public,
            source: self.target.credential_source,
        }
    }

    fn injected(&self, form: Naming, tool: &Tool) -> String {
        let namer = &self.view.snapshot.namer;
        namer.injected(form, &self.entry.definition.name, &tool.name)
    }
}

impl Listing {
    fn new(shown: &Shown, naming: Naming) -> Self {
        let mut entries = Vec::new();
        for tool in &shown.catalog.tools {
            if !entries.is_empty() {
                entries.push(b',');
            }
            write_entry(&mut entries, shown, tool, &shown.injected(naming, tool));
        }
        Self {
            catalog: Arc::downgrade(shown.catalog),
            origin: shown.origin(),
            entries: entries.into(),
            single: OnceLock::new(),
            double: OnceLock::new(),
        }
    }

    /// The tool injected under `name` in this form: looked up, never taken apart.
    pub fn tool<'a>(&self, shown: &Shown<'a>, form: Naming, name: &str) -> Option<&'a Tool> {
        let table = match form {
            Naming::Single => &self.single,
            Naming::Double => &self.double,
        };
        let table = table.get_or_init(|| {
            let named = |(position, tool)| (shown.injected(form, tool), position);
            shown.catalog.tools.iter().enumerate().map(named).collect()
        });
        shown.catalog.tools.get(*table.get(name)?)
    }

    fn is_of(&self, shown: &Shown) -> bool {
        std::ptr::eq(self.catalog.as_ptr(), Arc::as_ptr(shown.catalog))
            && self.origin == shown.origin()
    }
}

/// The listings of the catalogs at hand.
#[derive(Default)]
pub(super) struct Listings(Mutex<HashMap<PoolKey, Arc<Listing>>>);

impl Listings {
    pub fn get(&self, shown: &Shown, naming: Naming) -> Arc<Listing> {
        let key = &shown.target.key;
        let known = lock(&self.0).get(key).cloned();
        if let Some(listing) = known.filter(|listing| listing.is_of(shown)) {
            return listing;
        }
        let listing = Arc::new(Listing::new(shown, naming));
        let mut listings = lock(&self.0);
        if listings.len() == listings.capacity() {
            listings.retain(|_, listing| listing.catalog.strong_count() > 0);
        }
        listings.insert(key.clone(), listing.clone());
        listing
    }
}

fn write_entry(out: &mut Vec<u8>, shown: &Shown, tool: &Tool, injected: &str) {
    let sent = tool.raw.read().unwrap_or_else(|_| Members::none());
    let definition = &shown.entry.definition;
    out.extend_from_slice(b"{\"name\":");
    write_text(out, injected);
    write_member(out, "description", sent.get("description"), "\"\"");
    write_member(
        out,
        "inputSchema",
        sent.get("inputSchema"),
        "{\"type\":\"object\"}",
    );
    for (name, text) in [
        ("server_name", &*definition.name),
        ("serverName", &*definition.name),
        ("original_name", &*tool.name),
    ] {
        write_name(out, name);
        write_text(out, text);
    }
    write_name(out, "is_public");
    out.extend_from_slice(if definition.is_public {
        b"true"
    } else {
        b"false"
    });
    write_name(out, "server_id");
    write_text(out, definition.id.as_str());
    if let Some(user) = shown.target.key.scope.user() {
        write_name(out, "user_id");
        write_text(out, user.as_str());
    }
    if let Some(source) = shown.target.credential_source {
        write_name(out, "credential_source");
        write_text(out, source.as_str());
    }
    let unseen = unseen::in_json(tool.raw.bytes());
    if !unseen.is_empty() {
        write_name(out, "suspicious");
        out.extend_from_slice(json!(unseen).to_string().as_bytes());
    }
    for (name, value) in sent.iter().filter(|(name, _)| !OURS.contains(name)) {
        write_name(out, name);
        out.extend_from_slice(value.get().as_bytes());
    }
    out.push(b'}');
}

/// Writes what the server sent, else `absent`.
fn write_member(out: &mut Vec<u8>, name: &str, sent: Option<&RawValue>, absent: &str) {
    write_name(out, name);
    out.extend_from_slice(sent.map_or(absent, RawValue::get).as_bytes());
}

fn write_name(out: &mut Vec<u8>, name: &str) {
    out.push(b',');
    write_text(out, name);
    out.push(b':');
}

fn write_text(out: &mut Vec<u8>, text: &str) {
    // Writing a string into memory cannot fail.
    let _ = serde_json::to_writer(out, text);
}
