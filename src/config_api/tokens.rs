//! Service tokens: what a program reads the config API with, for any user. There is none unless
//! somebody made it; it is shown once, and only its hash is kept.

use base64::Engine;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use chacha20poly1305::aead::Generate;
use serde::Serialize;
use sha2::{Digest, Sha256};
use subtle::ConstantTimeEq;

use super::audit::{Action, Event};
use super::database::sql;
use super::edit::{failed, invalid, new_id};
use super::store::Store;
use crate::model::error::Failure;
use crate::model::secret::Secret;

/// What every service token begins with.
pub(super) const PREFIX: &str = "mcps_";

const LONGEST_NAME: usize = 64;

/// What is known of a service token.
#[derive(Clone, Debug, Serialize, sqlx::FromRow)]
pub struct ServiceToken {
    pub id: String,
    pub name: String,
    /// Whether it may change definitions and credentials too.
    pub is_admin: bool,
    pub created_at: String,
    #[serde(skip)]
    hash: String,
}

const TOKENS: &str = "SELECT id, name, hash, is_admin, CAST(created_at AS CHAR(19)) AS created_at
     FROM mcp_service_tokens";

impl Store {
    /// Makes a service token and gives it out, for the only time.
    ///
    /// # Errors
    /// `invalid_params` for a name that is taken or cannot be one.
    pub async fn add_token(&self, name: &str, is_admin: bool) -> Result<Secret, Failure> {
        let length = name.chars().count();
        if length == 0 || length > LONGEST_NAME || name.chars().any(char::is_control) {
            return Err(invalid(format!(
                "{name:?} is no name for a token: 1 to {LONGEST_NAME} characters, none of them control characters"
            )));
        }
        let id = new_id();
        let random = URL_SAFE_NO_PAD.encode(<[u8; 32]>::generate());
        let token = Secret::new(format!("{PREFIX}{id}_{random}"));
        let insert =
            sql("INSERT INTO mcp_service_tokens (id, name, hash, is_admin) VALUES (?, ?, ?, ?)")
                .bind(id)
                .bind(name)
                .bind(hash(token.expose()))
                .bind(is_admin);
        let mut change = self.database.change().await.map_err(failed)?;
        match change.execute(insert).await {
            Ok(_) => {
                let event = Event::of_token(Action::CreateToken, name);
                self.note(&mut change, event).await.map_err(failed)?;
                change.commit().await.map_err(failed)?;
                Ok(token)
            }
            Err(error)
                if error
                    .as_database_error()
                    .is_some_and(sqlx::error::DatabaseError::is_unique_violation) =>
            {
                Err(invalid(format!("there is a token named {name:?} already")))
            }
            Err(error) => Err(failed(error)),
        }
    }

    /// All service tokens, by name.
    pub async fn tokens(&self) -> Result<Vec<ServiceToken>, Failure> {
        let mut tokens: Vec<ServiceToken> =
            self.database.fetch(sql(TOKENS)).await.map_err(failed)?;
        tokens.sort_by(|one, other| one.name.cmp(&other.name));
        Ok(tokens)
    }

    /// Takes a service token back, from the next question on; `false`: there is none of that name.
    pub async fn remove_token(&self, name: &str) -> Result<bool, Failure> {
        let removal = sql("DELETE FROM mcp_service_tokens WHERE name = ?").bind(name);
        let mut change = self.database.change().await.map_err(failed)?;
        if change.execute(removal).await.map_err(failed)? == 0 {
            return Ok(false);
        }
        let event = Event::of_token(Action::DeleteToken, name);
        self.note(&mut change, event).await.map_err(failed)?;
        change.commit().await.map_err(failed)?;
        Ok(true)
    }

    /// What is known of the token that was sent; `None`: it is none of ours.
    pub(super) async fn check_token(&self, sent: &str) -> sqlx::Result<Option<ServiceToken>> {
        let id = sent
            .strip_prefix(PREFIX)
            .and_then(|rest| rest.split_once('_'));
        let Some((id, _)) = id.filter(|(id, _)| id.len() == 32 && id.is_ascii()) else {
            return Ok(None);
        };
        let query = sql(
            "SELECT id, name, hash, is_admin, CAST(created_at AS CHAR(19)) AS created_at
             FROM mcp_service_tokens WHERE id = ?",
        );
        let known = self.database.fetch::<ServiceToken>(query.bind(id)).await?;
        let own = hash(sent);
        let is_same =
            |token: &ServiceToken| bool::from(token.hash.as_bytes().ct_eq(own.as_bytes()));
        Ok(known.into_iter().find(is_same))
    }
}

fn hash(token: &str) -> String {
    let digest = Sha256::digest(token.as_bytes());
    digest.iter().map(|byte| format!("{byte:02x}")).collect()
}
