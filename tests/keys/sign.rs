//! Signs tokens for tests; unit and integration tests both include this file.
#![allow(dead_code)]

use base64::Engine;
use base64::engine::general_purpose::{STANDARD, URL_SAFE_NO_PAD};
use ring::rand::SystemRandom;
use ring::signature::{
    ECDSA_P256_SHA256_FIXED_SIGNING, EcdsaKeyPair, Ed25519KeyPair, KeyPair, RSA_PKCS1_SHA256,
    RsaKeyPair,
};
use serde_json::{Value, json};

pub const RSA_PUBLIC: &str = include_str!("rsa.pub.pem");
pub const SECRET: &[u8] = b"a secret of the tests, 32 bytes and more";

/// A key that signs.
pub enum Signer {
    Hs256(Vec<u8>),
    Rs256(RsaKeyPair),
    Es256(EcdsaKeyPair),
    Ed25519(Ed25519KeyPair),
}

impl Signer {
    pub fn hs256() -> Self {
        Self::Hs256(SECRET.to_vec())
    }

    pub fn rs256() -> Self {
        let pem = include_str!("rsa.pem")
            .lines()
            .filter(|line| !line.starts_with('-'));
        let der = STANDARD.decode(pem.collect::<String>()).unwrap();
        Self::Rs256(RsaKeyPair::from_pkcs8(&der).unwrap())
    }

    pub fn es256() -> Self {
        let random = SystemRandom::new();
        let rules = &ECDSA_P256_SHA256_FIXED_SIGNING;
        let key = EcdsaKeyPair::generate_pkcs8(rules, &random).unwrap();
        Self::Es256(EcdsaKeyPair::from_pkcs8(rules, key.as_ref(), &random).unwrap())
    }

    pub fn ed25519() -> Self {
        let key = Ed25519KeyPair::generate_pkcs8(&SystemRandom::new()).unwrap();
        Self::Ed25519(Ed25519KeyPair::from_pkcs8(key.as_ref()).unwrap())
    }

    pub fn name(&self) -> &'static str {
        match self {
            Self::Hs256(_) => "HS256",
            Self::Rs256(_) => "RS256",
            Self::Es256(_) => "ES256",
            Self::Ed25519(_) => "EdDSA",
        }
    }

    /// The public key as a member of a JWKS.
    pub fn jwk(&self, id: &str) -> Value {
        let text = |bytes: &[u8]| URL_SAFE_NO_PAD.encode(bytes);
        match self {
            Self::Hs256(secret) => json!({"kty": "oct", "kid": id, "k": text(secret)}),
            Self::Rs256(key) => {
                let public = ring::rsa::PublicKeyComponents::<Vec<u8>>::from(key.public());
                json!({"kty": "RSA", "kid": id, "use": "sig", "alg": "RS256",
                       "n": text(&public.n), "e": text(&public.e)})
            }
            Self::Es256(key) => {
                let (x, y) = key.public_key().as_ref()[1..].split_at(32);
                json!({"kty": "EC", "crv": "P-256", "kid": id, "x": text(x), "y": text(y)})
            }
            Self::Ed25519(key) => {
                json!({"kty": "OKP", "crv": "Ed25519", "kid": id, "x": text(key.public_key().as_ref())})
            }
        }
    }

    pub fn sign(&self, header: &Value, claims: &Value) -> String {
        let part = |value: &Value| URL_SAFE_NO_PAD.encode(value.to_string());
        let message = format!("{}.{}", part(header), part(claims));
        let bytes = message.as_bytes();
        let random = SystemRandom::new();
        let signature = match self {
            Self::Hs256(secret) => {
                let key = ring::hmac::Key::new(ring::hmac::HMAC_SHA256, secret);
                ring::hmac::sign(&key, bytes).as_ref().to_vec()
            }
            Self::Rs256(key) => {
                let mut signature = vec![0; key.public().modulus_len()];
                key.sign(&RSA_PKCS1_SHA256, &random, bytes, &mut signature)
                    .unwrap();
                signature
            }
            Self::Es256(key) => key.sign(&random, bytes).unwrap().as_ref().to_vec(),
            Self::Ed25519(key) => key.sign(bytes).as_ref().to_vec(),
        };
        format!("{message}.{}", URL_SAFE_NO_PAD.encode(signature))
    }

    /// A token with these claims, as it should be.
    pub fn token(&self, claims: &Value) -> String {
        self.sign(&json!({"alg": self.name(), "typ": "JWT"}), claims)
    }
}

/// Seconds since 1970, and some.
pub fn in_seconds(more: i64) -> i64 {
    let now = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH);
    i64::try_from(now.unwrap().as_secs()).unwrap() + more
}
