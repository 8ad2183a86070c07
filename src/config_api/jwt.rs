//! Users' JSON Web Tokens: who may verify them, and what they say.
//!
//! The algorithm is the key's, never the token's. `exp` is required; `aud` and `iss` are where the
//! settings name them.

use std::path::Path;

use jsonwebtoken::crypto::{CryptoProvider, JwtSigner, JwtVerifier, KeyUtils};
use jsonwebtoken::errors::{ErrorKind, Result as JwtResult};
use jsonwebtoken::jwk::{
    AlgorithmParameters, EllipticCurve, Jwk, JwkSet, KeyAlgorithm, PublicKeyUse,
};
use jsonwebtoken::{
    Algorithm, AlgorithmFamily, DecodingKey, DecodingKeyKind, EncodingKey, Validation, decode,
    decode_header,
};
use ring::{hmac, signature as ring_signature};
use serde::Deserialize;
use serde_json::{Map, Value};
use signature::Verifier;

use crate::model::settings::ServerSettings;

/// How far clocks may differ, in seconds.
const LEEWAY: u64 = 30;

/// The shortest secret that signs, in bytes: as long as its hash.
const SHORTEST_SECRET: usize = 32;

/// The longest token that is looked at, in bytes.
const LONGEST_TOKEN: usize = 16 * 1024;

/// A key that verifies.
#[derive(Clone)]
pub(super) struct Key {
    id: Option<String>,
    algorithm: Algorithm,
    key: DecodingKey,
}

/// What a valid token says.
#[derive(Debug, Deserialize)]
pub(super) struct Claims {
    #[serde(default)]
    sub: Value,
    #[serde(default, rename = "userId")]
    user_id: Value,
    #[serde(flatten)]
    others: Map<String, Value>,
}

impl Claims {
    /// Whether it is a token of this user.
    pub(super) fn is_of(&self, user: &str) -> bool {
        let is = |claim: &Value| match claim {
            Value::String(text) => text == user,
            Value::Number(number) => number.to_string() == user,
            _ => false,
        };
        is(&self.sub) || is(&self.user_id)
    }

    /// The user whom `sub`, else `userId` names; "" for none.
    pub(super) fn user(&self) -> String {
        let named = [&self.sub, &self.user_id].map(|claim| match claim {
            Value::String(text) => text.clone(),
            Value::Number(number) => number.to_string(),
            _ => String::new(),
        });
        named
            .into_iter()
            .find(|name| !name.is_empty())
            .unwrap_or_default()
    }

    /// Whether the claim is this text, or a list with it.
    pub(super) fn says(&self, claim: &str, word: &str) -> bool {
        match self.others.get(claim) {
            Some(Value::String(text)) => text == word,
            Some(Value::Array(items)) => items.iter().any(|item| item == word),
            _ => false,
        }
    }
}

/// What is demanded of every token.
#[derive(Clone)]
pub(super) struct Rules(Validation);

impl Rules {
    pub(super) fn of(settings: &ServerSettings) -> Self {
        // Only fails where it is installed already.
        let _ = RING.install_default();
        let mut rules = Validation::new(Algorithm::HS256);
        rules.leeway = LEEWAY;
        rules.validate_nbf = true;
        rules.validate_aud = settings.jwt_audience.is_some();
        let mut required = vec!["exp"];
        if let Some(audience) = &settings.jwt_audience {
            rules.set_audience(&[audience]);
            required.push("aud");
        }
        if let Some(issuer) = &settings.jwt_issuer {
            rules.set_issuer(&[issuer]);
            required.push("iss");
        }
        rules.set_required_spec_claims(&required);
        Self(rules)
    }

    /// The claims of a token that one of the keys verifies.
    ///
    /// # Errors
    /// Why not: for the log, never for who sent it.
    pub(super) fn verify(&self, token: &str, keys: &[Key]) -> Result<Claims, String> {
        if token.len() > LONGEST_TOKEN {
            return Err("it is too long".to_owned());
        }
        let header = decode_header(token).map_err(|error| error.to_string())?;
        let named = |key: &&Key| match (&key.id, &header.kid) {
            (Some(own), Some(named)) => own == named,
            _ => true,
        };
        let mut reason = "no key is known for it".to_owned();
        for key in keys.iter().filter(named) {
            let mut rules = self.0.clone();
            rules.algorithms = vec![key.algorithm];
            match decode::<Claims>(token, &key.key, &rules) {
                Ok(token) => return Ok(token.claims),
                Err(error) => reason = error.to_string(),
            }
        }
        Err(reason)
    }
}

/// Whether the token names a key that is not among these.
pub(super) fn names_another_key(token: &str, keys: &[Key]) -> bool {
    let named = decode_header(token).ok().and_then(|header| header.kid);
    named.is_some_and(|named| !keys.iter().any(|key| key.id.as_ref() == Some(&named)))
}

/// The key in a file: a public key in PEM (RSA, P-256, Ed25519), else the secret of HS256.
///
/// # Errors
/// Reads after "server.jwt_key ".
pub(super) fn key_in(file: &Path) -> Result<Key, String> {
    let shown = file.display();
    let bytes = std::fs::read(file).map_err(|error| format!("{shown} cannot be read: {error}"))?;
    if !bytes.starts_with(b"-----BEGIN") {
        return secret(bytes.trim_ascii()).map_err(|reason| format!("{shown} {reason}"));
    }
    let read = [
        (Algorithm::RS256, DecodingKey::from_rsa_pem(&bytes)),
        (Algorithm::ES256, DecodingKey::from_ec_pem(&bytes)),
        (Algorithm::EdDSA, DecodingKey::from_ed_pem(&bytes)),
    ];
    let key = read.into_iter().find_map(|(algorithm, key)| {
        let (id, key) = (None, key.ok()?);
        Some(Key { id, algorithm, key })
    });
    key.ok_or_else(|| format!("{shown} holds no public key of RSA, P-256 or Ed25519 in PEM"))
}

fn secret(bytes: &[u8]) -> Result<Key, String> {
    if bytes.len() < SHORTEST_SECRET {
        return Err(format!(
            "holds neither a public key in PEM nor a secret of {SHORTEST_SECRET} bytes or more"
        ));
    }
    let key = DecodingKey::from_secret(bytes).map_err(|error| error.to_string())?;
    Ok(Key {
        id: None,
        algorithm: Algorithm::HS256,
        key,
    })
}

/// The keys of a JWKS that can be used; the others are left out, with a line in the log.
///
/// # Errors
/// No JWKS, or none of its keys can be used.
pub(super) fn keys_of_set(text: &[u8], is_public: bool) -> Result<Vec<Key>, String> {
    let set: JwkSet =
        serde_json::from_slice(text).map_err(|error| format!("is no JWKS: {error}"))?;
    let keys: Vec<Key> = set
        .keys
        .iter()
        .filter_map(|jwk| usable(jwk, is_public))
        .collect();
    if keys.is_empty() {
        return Err("holds no key for RS256, ES256 or EdDSA".to_owned());
    }
    Ok(keys)
}

fn usable(jwk: &Jwk, is_public: bool) -> Option<Key> {
    let common = &jwk.common;
    let algorithm = match &jwk.algorithm {
        AlgorithmParameters::RSA(_) => Some((Algorithm::RS256, KeyAlgorithm::RS256)),
        AlgorithmParameters::EllipticCurve(key) if key.curve == EllipticCurve::P256 => {
            Some((Algorithm::ES256, KeyAlgorithm::ES256))
        }
        AlgorithmParameters::OctetKeyPair(key) if key.curve == EllipticCurve::Ed25519 => {
            Some((Algorithm::EdDSA, KeyAlgorithm::EdDSA))
        }
        AlgorithmParameters::OctetKey(_) if !is_public => {
            Some((Algorithm::HS256, KeyAlgorithm::HS256))
        }
        _ => None,
    };
    let signs = common
        .public_key_use
        .as_ref()
        .is_none_or(|it| *it == PublicKeyUse::Signature);
    let fits = |name: &KeyAlgorithm| common.key_algorithm.as_ref().is_none_or(|it| it == name);
    let id = common.key_id.clone();
    match algorithm {
        Some((algorithm, name)) if signs && fits(&name) => {
            let key = DecodingKey::from_jwk(jwk).ok()?;
            Some(Key { id, algorithm, key })
        }
        _ => {
            tracing::warn!(
                kid = id,
                "a key of the JWKS is of no use here, and left out"
            );
            None
        }
    }
}

/// What verifies is ring, as for TLS. Nothing is signed here.
static RING: CryptoProvider = CryptoProvider {
    signer_factory: no_signer,
    verifier_factory: verifier,
    key_utils: KeyUtils::new_unimplemented(),
};

fn no_signer(_: &Algorithm, _: &EncodingKey) -> JwtResult<Box<dyn JwtSigner>> {
    Err(ErrorKind::UnsupportedAlgorithm.into())
}

fn verifier(algorithm: &Algorithm, key: &DecodingKey) -> JwtResult<Box<dyn JwtVerifier>> {
    let family = match algorithm {
        Algorithm::HS256 => AlgorithmFamily::Hmac,
        Algorithm::RS256 => AlgorithmFamily::Rsa,
        Algorithm::ES256 => AlgorithmFamily::Ec,
        Algorithm::EdDSA => AlgorithmFamily::Ed,
        _ => return Err(ErrorKind::UnsupportedAlgorithm.into()),
    };
    if key.family() != family {
        return Err(ErrorKind::InvalidKeyFormat.into());
    }
    Ok(Box::new(RingVerifier {
        algorithm: *algorithm,
        key: key.clone(),
    }))
}

struct RingVerifier {
    algorithm: Algorithm,
    key: DecodingKey,
}

impl JwtVerifier for RingVerifier {
    fn algorithm(&self) -> Algorithm {
        self.algorithm
    }
}

impl Verifier<Vec<u8>> for RingVerifier {
    fn verify(&self, message: &[u8], signature: &Vec<u8>) -> Result<(), signature::Error> {
        let verified = match (self.algorithm, self.key.kind()) {
            (Algorithm::HS256, DecodingKeyKind::SecretOrDer(secret)) => {
                let key = hmac::Key::new(hmac::HMAC_SHA256, secret);
                hmac::verify(&key, message, signature)
            }
            (Algorithm::RS256, DecodingKeyKind::RsaModulusExponent { n, e }) => {
                let key = ring_signature::RsaPublicKeyComponents { n, e };
                let rules = &ring_signature::RSA_PKCS1_2048_8192_SHA256;
                key.verify(rules, message, signature)
            }
            (algorithm, DecodingKeyKind::SecretOrDer(key)) => {
                let rules: &dyn ring_signature::VerificationAlgorithm = match algorithm {
                    Algorithm::RS256 => &ring_signature::RSA_PKCS1_2048_8192_SHA256,
                    Algorithm::ES256 => &ring_signature::ECDSA_P256_SHA256_FIXED,
                    _ => &ring_signature::ED25519,
                };
                ring_signature::UnparsedPublicKey::new(rules, key).verify(message, signature)
            }
            _ => Err(ring::error::Unspecified),
        };
        verified.map_err(|_| signature::Error::new())
    }
}

#[cfg(test)]
#[path = "jwt_tests.rs"]
mod tests;
