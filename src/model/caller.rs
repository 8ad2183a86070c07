//! Who a command is for.

use std::fmt;
use std::sync::Arc;

use super::secret::Secret;

macro_rules! text_id {
    ($(#[$meta:meta])* $name:ident) => {
        $(#[$meta])*
        #[derive(Clone, PartialEq, Eq, Hash, PartialOrd, Ord)]
        pub struct $name(Arc<str>);

        impl $name {
            pub fn new(value: &str) -> Self {
                Self(value.into())
            }

            #[allow(dead_code)] // Not every id is looked into.
            pub fn as_str(&self) -> &str {
                &self.0
            }
        }

        impl fmt::Debug for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                self.0.fmt(f)
            }
        }

        impl fmt::Display for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str(&self.0)
            }
        }
    };
}

text_id! {
    /// A user, as the host names them.
    UserId
}
text_id! {
    /// One conversation of a user, as the host names it.
    SessionId
}
text_id! {
    /// A definition's id in the store (never its name).
    ServerId
}

/// The `user` member of a command.
#[derive(Clone, Debug, Default)]
pub struct Caller {
    /// `None`: the command speaks for nobody in particular.
    pub user: Option<UserId>,
    /// Goes to the config API as Bearer, and nowhere else.
    pub access_token: Option<Secret>,
    pub session: Option<SessionId>,
}
