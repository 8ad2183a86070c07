use proptest::prelude::*;

use super::*;

const HOME: Place<'static> = Place {
    table: "mcp_user_credentials",
    server: "s1",
    user: "ann",
};

fn vault(keys: &[&Secret]) -> Vault {
    let text: Vec<_> = keys.iter().map(|key| key.expose()).collect();
    Vault::new(&Secret::new(text.join("\n"))).unwrap()
}

#[test]
fn a_value_opens_only_in_its_own_row() {
    let vault = vault(&[&Vault::generate_key()]);
    let sealed = vault.seal(HOME, &Secret::new("{}")).unwrap();
    assert!(vault.open(HOME, &sealed).unwrap() == Secret::new("{}"));
    for other in [
        Place {
            table: "mcp_credentials",
            ..HOME
        },
        Place {
            server: "s2",
            ..HOME
        },
        Place {
            user: "bob",
            ..HOME
        },
        Place {
            server: "s1a",
            user: "nn",
            ..HOME
        },
    ] {
        assert!(vault.open(other, &sealed).is_err(), "{other:?}");
    }
}

#[test]
fn old_keys_are_read_and_the_first_one_writes() {
    let (old, new) = (Vault::generate_key(), Vault::generate_key());
    let sealed = vault(&[&old]).seal(HOME, &Secret::new("{}")).unwrap();
    let both = vault(&[&new, &old]);
    assert!(both.open(HOME, &sealed).is_ok());
    let again = both.seal(HOME, &Secret::new("{}")).unwrap();
    assert!(vault(&[&new]).open(HOME, &again).is_ok());
    let unknown = vault(&[&new]).open(HOME, &sealed).unwrap_err();
    assert!(unknown.contains("not among the keys"), "{unknown}");
    let relabelled = sealed.replacen(key_id(&sealed).unwrap(), key_id(&again).unwrap(), 1);
    assert!(both.open(HOME, &relabelled).is_err());
}

#[test]
fn keys_are_read_in_base64_and_hex() {
    let hex = "ab".repeat(32);
    let base64 = STANDARD.encode([0xab; 32]);
    let sealed = Vault::new(&Secret::new(hex))
        .unwrap()
        .seal(HOME, &Secret::new("{}"))
        .unwrap();
    let commented = Secret::new(format!("# made by hand\n\n  {base64} \n"));
    assert!(Vault::new(&commented).unwrap().open(HOME, &sealed).is_ok());
    for bad in ["", "short", &"zz".repeat(32), &STANDARD.encode([1; 31])] {
        let refused = Vault::new(&Secret::new(bad)).unwrap_err();
        assert!(
            bad.is_empty() || !refused.contains(bad),
            "the key is not shown"
        );
    }
}

#[test]
fn plain_json_is_read_as_it_is() {
    let vault = vault(&[&Vault::generate_key()]);
    assert!(vault.open(HOME, r#" {"a": 1}"#).unwrap() == Secret::new(r#" {"a": 1}"#));
    assert!(vault.open(HOME, "").is_ok());
    assert!(vault.open(HOME, "gibberish").is_err());
}

proptest! {
    /// F12: what was sealed opens; whatever is changed in it does not.
    #[test]
    fn seals_anything_and_notices_every_change(plain in ".{0,80}", at in any::<prop::sample::Index>(), flip in 0u8..7) {
        let vault = vault(&[&Vault::generate_key()]);
        let sealed = vault.seal(HOME, &Secret::new(plain.clone())).unwrap();
        prop_assert!(vault.open(HOME, &sealed).unwrap() == Secret::new(plain));
        let mut bytes = sealed.clone().into_bytes();
        let at = at.index(bytes.len());
        bytes[at] ^= 1 << flip;
        if let Ok(changed) = String::from_utf8(bytes) {
            prop_assert!(vault.open(HOME, &changed).is_err(), "{changed}");
        }
    }
}
