use serde_json::json;
use sign::{RSA_PUBLIC, SECRET, Signer, in_seconds};

use super::*;

#[path = "../../tests/keys/sign.rs"]
mod sign;

fn set_of(jwks: &[Value]) -> Vec<Key> {
    keys_of_set(json!({"keys": jwks}).to_string().as_bytes(), false).unwrap()
}

fn rules() -> Rules {
    Rules::of(&ServerSettings::default())
}

fn strict() -> Rules {
    Rules::of(&ServerSettings {
        jwt_audience: Some("mcp".to_owned()),
        jwt_issuer: Some("https://id.example".to_owned()),
        ..ServerSettings::default()
    })
}

fn in_file(text: &[u8]) -> Result<Key, String> {
    let directory = tempfile::tempdir().unwrap();
    let file = directory.path().join("key");
    std::fs::write(&file, text).unwrap();
    key_in(&file)
}

fn ann() -> Value {
    json!({"sub": "ann", "exp": in_seconds(600)})
}

#[test]
fn a_token_of_each_algorithm_is_verified_by_its_own_key_alone() {
    let signers = [
        Signer::hs256(),
        Signer::rs256(),
        Signer::es256(),
        Signer::ed25519(),
    ];
    let keys: Vec<Vec<Key>> = signers
        .iter()
        .map(|signer| set_of(&[signer.jwk("1")]))
        .collect();
    for (at, signer) in signers.iter().enumerate() {
        let token = signer.token(&ann());
        for (other, keys) in keys.iter().enumerate() {
            let verified = rules().verify(&token, keys);
            assert_eq!(
                verified.is_ok(),
                at == other,
                "{} by key {other}",
                signer.name()
            );
        }
        assert!(rules().verify(&token, &keys.concat()).unwrap().is_of("ann"));
    }
}

#[test]
fn the_key_in_a_file_fixes_the_algorithm() {
    let rsa = in_file(RSA_PUBLIC.as_bytes()).unwrap();
    let secret = in_file(&[SECRET, b"\n"].concat()).unwrap();
    let claims = ann();
    assert!(
        rules()
            .verify(&Signer::rs256().token(&claims), std::slice::from_ref(&rsa))
            .is_ok()
    );
    assert!(
        rules()
            .verify(&Signer::hs256().token(&claims), &[secret])
            .is_ok()
    );
    let ec = in_file(include_bytes!("../../tests/keys/ec.pub.pem")).unwrap();
    let ed = "-----BEGIN PUBLIC KEY-----\nMCowBQYDK2VwAyEA/7GYvOcco0AlgLbUbWETN5QLT3DaUpVQ6X1yOxHTvMg=\n-----END PUBLIC KEY-----\n";
    let ed = in_file(ed.as_bytes()).unwrap();
    assert_eq!(
        (ec.algorithm, ed.algorithm),
        (Algorithm::ES256, Algorithm::EdDSA)
    );
    for bad in [&b"short"[..], b"", b"-----BEGIN NOTHING-----"] {
        in_file(bad).err().unwrap();
    }
    // The public key is no secret of HS256.
    let confused = Signer::Hs256(RSA_PUBLIC.as_bytes().to_vec());
    rules()
        .verify(&confused.token(&claims), &[rsa])
        .unwrap_err();
}

#[test]
fn forged_and_expired_tokens_are_refused() {
    let signer = Signer::rs256();
    let keys = set_of(&[
        signer.jwk("1"),
        Signer::es256().jwk("2"),
        Signer::ed25519().jwk("3"),
    ]);
    let good = json!({"sub": "ann", "exp": in_seconds(600), "nbf": in_seconds(-5),
                      "aud": ["other", "mcp"], "iss": "https://id.example"});
    let verify = |token: &str| strict().verify(token, &keys);
    verify(&signer.token(&good)).unwrap();

    let with = |claim: &str, value: Value| {
        let mut claims = good.clone();
        claims[claim] = value;
        signer.token(&claims)
    };
    let without = |claim: &str| {
        let mut claims = good.clone();
        claims.as_object_mut().unwrap().remove(claim);
        signer.token(&claims)
    };
    let none = json!({"alg": "none"});
    let token = signer.token(&good);
    let (message, signature) = token.rsplit_once('.').unwrap();
    let (header, claims) = message.split_once('.').unwrap();
    let other_claims = Signer::hs256().token(&json!({"sub": "eve", "exp": in_seconds(600)}));
    let other_claims = other_claims.split('.').nth(1).unwrap();
    let forged = [
        with("exp", json!(in_seconds(-60))),
        with("exp", json!(in_seconds(600).to_string())),
        with("exp", json!(null)),
        with("exp", json!([in_seconds(600)])),
        without("exp"),
        with("nbf", json!(in_seconds(600))),
        with("nbf", json!("soon")),
        with("aud", json!("another")),
        with("aud", json!([])),
        without("aud"),
        with("iss", json!("https://id.example.evil")),
        without("iss"),
        signer.sign(&none, &good),
        format!("{message}."),
        message.to_owned(),
        format!("{header}.{other_claims}.{signature}"),
        signer.sign(&json!({"alg": "HS256"}), &good),
        signer.sign(&json!({"alg": "RS512"}), &good),
        signer.sign(&json!({"alg": "ES256"}), &good),
        signer.sign(&json!({"alg": "RS256", "kid": "2"}), &good),
        Signer::es256().token(&good),
        Signer::hs256().token(&good),
        Signer::Hs256(RSA_PUBLIC.as_bytes().to_vec()).token(&good),
        format!("{header}.{claims}.{signature}A"),
        format!("{token}.{token}"),
        String::new(),
        "..".to_owned(),
        "a".repeat(100_000),
    ];
    for token in forged {
        assert!(verify(&token).is_err(), "accepted: {token}");
    }
}

#[test]
fn a_token_is_of_the_user_it_names_exactly() {
    let claims = |value: Value| serde_json::from_value::<Claims>(value).unwrap();
    assert!(claims(json!({"sub": "ann"})).is_of("ann"));
    assert!(claims(json!({"sub": "internal-7", "userId": "ann"})).is_of("ann"));
    assert!(claims(json!({"userId": 17})).is_of("17"));
    for other in ["Ann", "ann ", "", "17"] {
        assert!(!claims(json!({"sub": "ann"})).is_of(other), "{other:?}");
    }
    assert!(!claims(json!({"sub": ["ann"], "userId": {"ann": 1}})).is_of("ann"));
    assert!(!claims(json!({})).is_of("null"));
}

#[test]
fn keys_that_are_of_no_use_are_left_out() {
    let text = |keys: Value| json!({"keys": keys}).to_string();
    let rsa = Signer::rs256().jwk("1");
    let mut for_encryption = rsa.clone();
    for_encryption["use"] = "enc".into();
    let mut other_algorithm = rsa.clone();
    other_algorithm["alg"] = "RS512".into();
    let secret = Signer::hs256().jwk("2");
    let all = text(json!([for_encryption, other_algorithm, secret, rsa]));
    assert_eq!(
        keys_of_set(all.as_bytes(), true).unwrap().len(),
        1,
        "secrets are not public"
    );
    assert_eq!(keys_of_set(all.as_bytes(), false).unwrap().len(), 2);
    for none in [
        text(json!([for_encryption])),
        text(json!([])),
        "{}".to_owned(),
    ] {
        keys_of_set(none.as_bytes(), true).err().unwrap();
    }
}
