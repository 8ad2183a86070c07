use proptest::prelude::*;
use serde_json::{Value, json};

use super::*;
use crate::model::row;

fn entry(row: Value, own: Option<Value>, default: Option<Value>) -> ServerEntry {
    let mut whole = json!({"id": "1", "name": "books", "command": "x"});
    for (column, value) in row.as_object().unwrap() {
        whole[column] = value.clone();
    }
    ServerEntry {
        definition: row::definition(whole).unwrap(),
        user_credentials: own.map(credentials),
        default_credentials: default.map(credentials),
    }
}

fn http(row: Value, own: Option<Value>) -> ServerEntry {
    let mut whole = json!({"transport_type": "http", "url": "https://h/mcp"});
    for (column, value) in row.as_object().unwrap() {
        whole[column] = value.clone();
    }
    entry(whole, own, None)
}

fn credentials(fields: Value) -> Credentials {
    row::flatten(fields.as_object().unwrap().clone()).unwrap()
}

fn ann() -> Caller {
    Caller {
        user: Some(UserId::new("ann")),
        ..Caller::default()
    }
}

fn ann_in(session: &str) -> Caller {
    Caller {
        session: Some(SessionId::new(session)),
        ..ann()
    }
}

fn whose(
    entry: &ServerEntry,
    caller: &Caller,
) -> Result<(Scope, Option<CredentialSource>), ErrorCode> {
    resolve(entry, caller)
        .map(|target| (target.key.scope, target.credential_source))
        .map_err(|failure| failure.code)
}

fn headers(entry: &ServerEntry) -> Result<BTreeMap<String, String>, Failure> {
    match resolve(entry, &ann())?.launch {
        Launch::Http { headers, .. } => Ok(headers
            .iter()
            .map(|(name, value)| {
                (
                    name.to_string(),
                    String::from_utf8_lossy(value.as_bytes()).into(),
                )
            })
            .collect()),
        Launch::Stdio { .. } => panic!("not http"),
    }
}

const USER: Option<CredentialSource> = Some(CredentialSource::User);
const DEFAULT: Option<CredentialSource> = Some(CredentialSource::Default);

/// The five rules, each with and without a user: the whole table of docs/config-api.md.
#[test]
fn whose_connection_it_is() {
    let (key, nobody) = (json!({"K": "v"}), Caller::default());
    let anns = Scope::User(UserId::new("ann"));
    for (public, requires, own, default, with_user, without) in [
        // 1: private credentials make an own connection, also to a public server.
        (
            true,
            true,
            true,
            true,
            Ok((anns.clone(), USER)),
            Ok((Scope::Shared, DEFAULT)),
        ),
        (
            true,
            false,
            true,
            false,
            Ok((anns.clone(), USER)),
            Ok((Scope::Shared, None)),
        ),
        (
            false,
            true,
            true,
            true,
            Ok((anns.clone(), USER)),
            Err(ErrorCode::InvalidParams),
        ),
        // 2: a public server is shared.
        (
            true,
            true,
            false,
            true,
            Ok((Scope::Shared, DEFAULT)),
            Ok((Scope::Shared, DEFAULT)),
        ),
        (
            true,
            false,
            false,
            false,
            Ok((Scope::Shared, None)),
            Ok((Scope::Shared, None)),
        ),
        (
            true,
            true,
            false,
            false,
            Err(ErrorCode::CredentialsRequired),
            Err(ErrorCode::CredentialsRequired),
        ),
        // 3: the defaults on an own connection.
        (
            false,
            true,
            false,
            true,
            Ok((anns.clone(), DEFAULT)),
            Err(ErrorCode::InvalidParams),
        ),
        // 4
        (
            false,
            true,
            false,
            false,
            Err(ErrorCode::CredentialsRequired),
            Err(ErrorCode::InvalidParams),
        ),
        // 5
        (
            false,
            false,
            false,
            false,
            Ok((anns.clone(), None)),
            Err(ErrorCode::InvalidParams),
        ),
    ] {
        let row = json!({"is_public": public, "requires_credentials": requires});
        let entry = entry(
            row.clone(),
            own.then(|| key.clone()),
            default.then(|| key.clone()),
        );
        assert_eq!(whose(&entry, &ann()), with_user, "{row} {own} {default}");
        assert_eq!(
            whose(&entry, &nobody),
            without,
            "{row} {own} {default}, nobody"
        );
    }
}

#[test]
fn a_definition_may_ask_for_less_sharing() {
    let at = |isolation: &str, public: bool| {
        entry(
            json!({"isolation": isolation, "is_public": public}),
            None,
            None,
        )
    };
    let user = Scope::User(UserId::new("ann"));
    let session = Scope::Session(UserId::new("ann"), SessionId::new("s"));
    for public in [true, false] {
        assert_eq!(
            whose(&at("user", public), &ann_in("s")),
            Ok((user.clone(), None))
        );
        assert_eq!(
            whose(&at("session", public), &ann_in("s")),
            Ok((session.clone(), None))
        );
        assert_eq!(
            whose(&at("session", public), &ann()),
            Ok((user.clone(), None))
        );
        for isolation in ["user", "session"] {
            let nobody = Caller {
                user: None,
                ..ann_in("s")
            };
            assert_eq!(
                whose(&at(isolation, public), &nobody),
                Err(ErrorCode::InvalidParams)
            );
        }
    }
    assert_eq!(
        whose(&at("shared", true), &ann()),
        Ok((Scope::Shared, None))
    );
    assert_eq!(
        whose(&at("shared", false), &ann()),
        Ok((user, None)),
        "never more sharing"
    );
}

#[test]
fn the_form_comes_with_the_refusal() {
    let form = json!([{"name": "K", "label": "Key"}]);
    let row = json!({"requires_credentials": true, "credential_fields": form});
    let failure = resolve(&entry(row.clone(), None, None), &ann()).unwrap_err();
    assert_eq!(failure.details["credential_fields"], form);
    assert_eq!(failure.details["server_name"], "books");
    assert_eq!(failure.details["phase"], "credentials");

    let mut row = row;
    row["env_template"] = json!({"KEY": "${user.K}"});
    let failure = resolve(
        &entry(row, Some(json!({"other": "secret-value"})), None),
        &ann(),
    )
    .unwrap_err();
    assert_eq!(failure.code, ErrorCode::CredentialFieldMissing);
    assert_eq!(failure.details["field"], "K");
    assert_eq!(failure.details["credential_fields"], form);
}

#[test]
fn a_faulty_definition_is_config_invalid() {
    let failure = resolve(&entry(json!({"args": "["}), None, None), &ann()).unwrap_err();
    assert_eq!(
        (failure.code, &failure.details["field"]),
        (ErrorCode::ConfigInvalid, &json!("args"))
    );
    assert_eq!(failure.details["phase"], "resolve");
    let old = http(json!({"transport_type": "sse"}), None);
    assert_eq!(
        resolve(&old, &ann()).unwrap_err().code,
        ErrorCode::Unsupported
    );
    let stateless = http(json!({"transport_type": "statelessHttp"}), None);
    assert!(matches!(
        resolve(&stateless, &ann()).unwrap().launch,
        Launch::Http { .. }
    ));
}

#[test]
fn credential_fields_become_environment_only_through_the_template() {
    let names = [
        "LD_PRELOAD",
        "PATH",
        "NODE_OPTIONS",
        "BASH_ENV",
        "PYTHONSTARTUP",
        "KEY",
    ];
    let all: Value = names
        .iter()
        .map(|name| ((*name).to_owned(), json!("evil")))
        .collect::<serde_json::Map<_, _>>()
        .into();
    let own = json!({"env_overrides": all});
    let entry = entry(
        json!({"env_template": {"TOKEN": "${user.KEY}"}}),
        Some(own),
        None,
    );
    let Launch::Stdio { env, .. } = resolve(&entry, &ann()).unwrap().launch else {
        panic!("stdio");
    };
    assert_eq!(env.keys().collect::<Vec<_>>(), ["TOKEN"]);
}

#[test]
fn a_value_that_may_not_stand_there_is_named_not_shown() {
    let stdio = entry(
        json!({"args": ["${user.K}"]}),
        Some(json!({"K": "--evil-value"})),
        None,
    );
    let header = http(
        json!({"headers": {"X-A": "${user.K}"}}),
        Some(json!({"K": "evil-value\r\nX: y"})),
    );
    let automatic = http(json!({}), Some(json!({"api_key": "evil-value\n"})));
    let url = http(
        json!({"url": "https://h/${user.K}"}),
        Some(json!({"K": ".."})),
    );
    for (entry, field) in [
        (stdio, "K"),
        (header, "K"),
        (automatic, "api_key"),
        (url, "K"),
    ] {
        let failure = resolve(&entry, &ann()).unwrap_err();
        assert_eq!(failure.code, ErrorCode::CredentialInvalid, "{failure}");
        assert_eq!(failure.details["field"], field);
        assert!(!format!("{failure:?}").contains("evil-value"));
    }
}

#[test]
fn well_known_fields_become_headers_where_the_definition_sets_none() {
    let own = json!({"api_key": "k1", "token": "k2", "API_KEY": "k3"});
    let automatic = headers(&http(json!({}), Some(own.clone()))).unwrap();
    let wanted = [("authorization", "Bearer k1"), ("x-api-key", "k3")];
    assert_eq!(
        automatic,
        wanted.map(|(n, v)| (n.to_owned(), v.to_owned())).into()
    );

    let token = headers(&http(
        json!({}),
        Some(json!({"token": "k2", "api_key": ""})),
    ))
    .unwrap();
    assert_eq!(
        token,
        [("authorization".to_owned(), "Bearer k2".to_owned())].into()
    );

    let set = json!({"headers": {"AUTHORIZATION": "Basic abc", "X-Api-Key": "${user.token}"}});
    let kept = headers(&http(set, Some(own))).unwrap();
    let wanted = [("authorization", "Basic abc"), ("x-api-key", "k2")];
    assert_eq!(
        kept,
        wanted.map(|(n, v)| (n.to_owned(), v.to_owned())).into()
    );
}

#[test]
fn headers_name_the_env_map() {
    let row = json!({"headers": {"X-A": "${T}"}, "env_template": {"T": "t-${user.K}"}});
    let list = headers(&http(row, Some(json!({"K": "v"})))).unwrap();
    assert_eq!(list["x-a"], "t-v");
}

#[test]
fn a_target_never_shows_a_secret() {
    let own = json!({"K": "hush-hush", "api_key": "hush-hush"});
    let row = json!({"url": "https://h/${user.K}", "headers": {"X-A": "${user.K}"}});
    let http = resolve(&http(row, Some(own.clone())), &ann()).unwrap();
    let row = json!({"args": ["--k=${user.K}"], "env_template": {"E": "${user.K}"}});
    let stdio = resolve(&entry(row, Some(own), None), &ann()).unwrap();
    for target in [http, stdio] {
        assert!(!format!("{target:?}").contains("hush"), "{target:?}");
    }
}

/// T05: another definition or other credentials are another connection.
#[test]
fn the_fingerprint_covers_everything_it_was_started_with() {
    let base = json!({"args": ["a", "b"], "env_template": {"E": "1"}});
    let key = |entry: &ServerEntry| resolve(entry, &ann()).unwrap().key.fingerprint;
    let mut seen = vec![key(&entry(base.clone(), None, None))];
    assert_eq!(
        seen[0],
        key(&entry(base.clone(), None, None)),
        "the same is the same"
    );
    for (column, value) in [
        ("command", json!("y")),
        ("args", json!(["ab"])),
        ("args", json!(["a", "b", ""])),
        ("args", json!(["b", "a"])),
        ("env_template", json!({"E": "2"})),
        ("env_template", json!({"E1": ""})),
        ("env_template", json!({})),
    ] {
        let mut row = base.clone();
        row[column] = value;
        seen.push(key(&entry(row, None, None)));
    }
    for own in [json!({"K": "1"}), json!({"K": "2"}), json!({"K1": ""})] {
        seen.push(key(&entry(base.clone(), Some(own), None)));
    }
    for row in [
        json!({}),
        json!({"url": "https://h/other"}),
        json!({"headers": {"X-A": "1"}}),
        json!({"headers": {"X-A": "2"}}),
    ] {
        seen.push(key(&http(row, None)));
    }
    let count = seen.len();
    seen.sort_by_key(|fingerprint| fingerprint.0);
    seen.dedup();
    assert_eq!(seen.len(), count);
}

#[test]
fn the_definitions_fingerprint_is_the_same_for_all_its_users() {
    let of = |row: Value, own: Value, caller: &Caller| {
        resolve(&http(row, Some(own)), caller)
            .unwrap()
            .definition_fingerprint
    };
    let row = json!({"headers": {"X-A": "${user.K}"}});
    let anns = of(row.clone(), json!({"K": "1"}), &ann());
    let bob = Caller {
        user: Some(UserId::new("bob")),
        ..Caller::default()
    };
    assert_eq!(anns, of(row, json!({"K": "2"}), &bob));
    assert_ne!(
        anns,
        of(
            json!({"headers": {"X-A": "x${user.K}"}}),
            json!({"K": "1"}),
            &ann()
        )
    );
}

proptest! {
    /// F5, F6: a user's target is made of that user's values alone, and the order in which the
    /// fields were written is of no importance.
    #[test]
    fn one_users_values_never_reach_another(a in "[a-z]{6,9}", b in "[A-Z]{6,9}") {
        let row = json!({"url": "https://h/${user.K}", "headers": {"X-A": "${user.K}"}});
        let show = |value: &str, flip: bool| {
            let own = if flip { json!({"API_KEY": value, "K": value}) } else { json!({"K": value, "API_KEY": value}) };
            match resolve(&http(row.clone(), Some(own)), &ann()).unwrap().launch {
                Launch::Http { url, headers } => format!("{} {:?}", url.expose(), headers.iter().map(|(n, v)| (n, v.as_bytes())).collect::<Vec<_>>()),
                Launch::Stdio { .. } => String::new(),
            }
        };
        let (first, second) = (show(&a, false), show(&b, false));
        prop_assert!(first.contains(&a) && !first.contains(&b));
        prop_assert!(second.contains(&b) && !second.contains(&a));
        prop_assert_eq!(first, show(&a, true));
    }
}

#[test]
fn credentials_in_the_open_are_noticed() {
    let header = |name: &str, value: &str| BTreeMap::from([(name.to_owned(), value.to_owned())]);
    let far = "http://mcp.example.com/mcp";
    let key = header("X-Key", "${user.KEY}");
    assert!(is_open_to_the_network(far, &key, false));
    assert!(is_open_to_the_network(
        far,
        &header("Authorization", "Bearer x"),
        false
    ));
    assert!(
        is_open_to_the_network(far, &BTreeMap::new(), true),
        "an automatic header"
    );
    assert!(!is_open_to_the_network(
        far,
        &header("X-Color", "red"),
        false
    ));
    assert!(!is_open_to_the_network(
        "https://mcp.example.com/mcp",
        &key,
        false
    ));
    assert!(!is_open_to_the_network(
        "http://127.0.0.1:1/mcp",
        &key,
        false
    ));
}
