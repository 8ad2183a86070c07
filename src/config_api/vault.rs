//! Encryption of credentials at rest: XChaCha20-Poly1305, one random nonce a value, bound to the row.
//!
//! A stored value reads `enc1:KEYID:BASE64`, the base64 holding nonce and ciphertext. Several keys
//! can be read, the first one writes. A value that is a plain JSON object is read as it is, and
//! encrypted when it is next written.

use base64::Engine;
use base64::engine::general_purpose::{STANDARD, STANDARD_NO_PAD, URL_SAFE, URL_SAFE_NO_PAD};
use chacha20poly1305::aead::{Aead, Generate, KeyInit, Payload};
use chacha20poly1305::{XChaCha20Poly1305, XNonce};
use sha2::{Digest, Sha256};
use zeroize::Zeroizing;

use crate::model::secret::Secret;

const PREFIX: &str = "enc1:";
const NONCE: usize = 24;

/// The row that a value belongs to; it does not decrypt in any other.
#[derive(Clone, Copy, Debug)]
pub struct Place<'a> {
    pub table: &'static str,
    pub server: &'a str,
    /// "" for the system's defaults.
    pub user: &'a str,
}

impl Place<'_> {
    fn associated(&self, key_id: &str) -> Vec<u8> {
        let mut bytes = Vec::new();
        for part in [PREFIX, key_id, self.table, self.server, self.user] {
            bytes.extend((part.len() as u64).to_le_bytes());
            bytes.extend(part.as_bytes());
        }
        bytes
    }
}

/// The keys of a store.
pub struct Vault {
    /// The one that writes; also the first that is tried.
    writer: Key,
    readers: Vec<Key>,
}

#[derive(Clone)]
struct Key {
    id: String,
    cipher: XChaCha20Poly1305,
}

impl Vault {
    /// Reads keys, each 32 bytes in base64 or hex, separated by commas or line breaks. Lines that
    /// begin with `#` are skipped.
    ///
    /// # Errors
    /// Reads after "the key ".
    pub fn new(keys: &Secret) -> Result<Self, String> {
        let mut keys = Self::words(keys).map(Key::parse);
        let writer = keys.next().ok_or("is empty")??;
        Ok(Self {
            writer,
            readers: keys.collect::<Result<_, _>>()?,
        })
    }

    /// Each key as it is written.
    pub fn words(keys: &Secret) -> impl Iterator<Item = &str> {
        let lines = keys.expose().lines();
        let lines = lines.filter(|line| !line.trim_start().starts_with('#'));
        let words = lines.flat_map(|line| line.split(',')).map(str::trim);
        words.filter(|word| !word.is_empty())
    }

    /// The same keys, and those of `other` to read with.
    pub fn with_readers_of(mut self, other: &Self) -> Self {
        let known = std::iter::once(&other.writer).chain(&other.readers);
        let further: Vec<_> = known
            .filter(|key| self.key(&key.id).is_none())
            .cloned()
            .collect();
        self.readers.extend(further);
        self
    }

    /// The one key that writes.
    pub fn writer_only(&self) -> Self {
        Self {
            writer: self.writer.clone(),
            readers: Vec::new(),
        }
    }

    /// The ids of the keys, the one that writes first.
    pub fn ids(&self) -> Vec<&str> {
        let keys = std::iter::once(&self.writer).chain(&self.readers);
        keys.map(|key| key.id.as_str()).collect()
    }

    /// Whether a key for this stored value is at hand, or none is needed.
    pub fn knows(&self, stored: &str) -> bool {
        key_id(stored).is_none_or(|id| self.key(id).is_some())
    }

    /// A new random key, as [`Vault::new`] reads it.
    pub fn generate_key() -> Secret {
        let key = Zeroizing::new(<[u8; 32]>::generate());
        Secret::new(STANDARD.encode(*key))
    }

    /// Encrypts `plain` for its place.
    pub fn seal(&self, place: Place<'_>, plain: &Secret) -> Result<String, String> {
        let Key { id, cipher } = &self.writer;
        let nonce = XNonce::generate();
        let payload = Payload {
            msg: plain.expose().as_bytes(),
            aad: &place.associated(id),
        };
        let sealed = cipher
            .encrypt(&nonce, payload)
            .map_err(|_| "are too long to encrypt".to_owned())?;
        let whole = [nonce.as_slice(), &sealed].concat();
        Ok(format!("{PREFIX}{id}:{}", STANDARD.encode(whole)))
    }

    /// Decrypts what [`Vault::seal`] made for the same place.
    ///
    /// # Errors
    /// Reads after "credentials ".
    pub fn open(&self, place: Place<'_>, stored: &str) -> Result<Secret, String> {
        let Some(rest) = stored.strip_prefix(PREFIX) else {
            return match stored.trim_start().as_bytes().first() {
                None | Some(b'{') => Ok(Secret::new(stored)),
                Some(_) => Err("are neither encrypted nor a JSON object".to_owned()),
            };
        };
        let (id, text) = rest.split_once(':').ok_or("are cut off")?;
        let Some(key) = self.key(id) else {
            return Err(format!(
                "were encrypted with key {id}, which is not among the keys at hand"
            ));
        };
        let broken = || "do not decrypt: the row was altered, or copied from another".to_owned();
        let whole = STANDARD.decode(text).map_err(|_| broken())?;
        let (nonce, sealed) = whole.split_at_checked(NONCE).ok_or_else(broken)?;
        let nonce = XNonce::try_from(nonce).map_err(|_| broken())?;
        let payload = Payload {
            msg: sealed,
            aad: &place.associated(id),
        };
        let plain = key.cipher.decrypt(&nonce, payload).map_err(|_| broken())?;
        String::from_utf8(plain)
            .map(Secret::new)
            .map_err(|_| broken())
    }

    fn key(&self, id: &str) -> Option<&Key> {
        let mut keys = std::iter::once(&self.writer).chain(&self.readers);
        keys.find(|key| key.id == id)
    }
}

/// The id of the key that a stored value needs; `None`: it is not encrypted.
pub fn key_id(stored: &str) -> Option<&str> {
    let (id, _) = stored.strip_prefix(PREFIX)?.split_once(':')?;
    Some(id)
}

impl Key {
    fn parse(text: &str) -> Result<Self, String> {
        let bytes = Zeroizing::new(decode(text).ok_or("is not 32 bytes in base64 or hex")?);
        let cipher = XChaCha20Poly1305::new_from_slice(&bytes)
            .map_err(|_| format!("has {} bytes instead of 32", bytes.len()))?;
        let digest = Sha256::digest(bytes.as_slice());
        let id = digest[..4]
            .iter()
            .map(|byte| format!("{byte:02x}"))
            .collect();
        Ok(Self { id, cipher })
    }
}

fn decode(text: &str) -> Option<Vec<u8>> {
    if text.len() == 64 && text.bytes().all(|byte| byte.is_ascii_hexdigit()) {
        let pairs = (0..32).map(|at| u8::from_str_radix(&text[2 * at..2 * at + 2], 16).ok());
        return pairs.collect();
    }
    [STANDARD, STANDARD_NO_PAD, URL_SAFE, URL_SAFE_NO_PAD]
        .iter()
        .find_map(|engine| engine.decode(text).ok())
}

impl std::fmt::Debug for Vault {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let ids = std::iter::once(&self.writer)
            .chain(&self.readers)
            .map(|key| &key.id);
        f.debug_list().entries(ids).finish()
    }
}

#[cfg(test)]
#[path = "vault_tests.rs"]
mod tests;
