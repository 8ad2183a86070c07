//! Values that cannot be printed.

use std::collections::BTreeMap;
use std::fmt;
use std::sync::Arc;

use zeroize::Zeroizing;

/// A secret text: no `Display`, a masked `Debug`, zeroed when the last clone is dropped.
#[derive(Clone, PartialEq, Eq)]
pub struct Secret(Arc<Zeroizing<String>>);

impl Secret {
    pub fn new(value: impl Into<String>) -> Self {
        Self(Arc::new(Zeroizing::new(value.into())))
    }

    /// The text itself, for the one place that must use it.
    pub fn expose(&self) -> &str {
        &self.0
    }

    /// Whether nobody else holds this secret any more.
    pub(crate) fn downgrade(&self) -> std::sync::Weak<Zeroizing<String>> {
        Arc::downgrade(&self.0)
    }
}

impl fmt::Debug for Secret {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("***")
    }
}

/// The fields of one credential row, `env_overrides` already merged in.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Credentials(pub BTreeMap<String, Secret>);

impl Credentials {
    pub fn get(&self, field: &str) -> Option<&Secret> {
        self.0.get(field)
    }
}

/// Whose credentials are in force.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum CredentialSource {
    User,
    Default,
}

impl CredentialSource {
    /// The word on the wire.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::User => "user",
            Self::Default => "default",
        }
    }
}
