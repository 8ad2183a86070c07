use clap::Parser;

use super::*;
use crate::config_api::open_in;

#[derive(Parser)]
struct Line {
    #[command(flatten)]
    args: Args,
}

fn line(words: &[&str]) -> Result<Args, clap::Error> {
    Line::try_parse_from([&["credential"], words].concat()).map(|line| line.args)
}

fn fields(text: &str) -> Result<Vec<(String, String)>, String> {
    let read = parse(text)
        .map_err(|failure| failure.message)?
        .0
        .into_iter();
    Ok(read
        .map(|(name, value)| (name, value.expose().to_owned()))
        .collect())
}

fn wanted(pairs: &[(&str, &str)]) -> Result<Vec<(String, String)>, String> {
    let pairs = pairs.iter();
    Ok(pairs
        .map(|(name, value)| ((*name).to_owned(), (*value).to_owned()))
        .collect())
}

#[test]
fn reads_lines_and_json() {
    let lines = "A=1\r\n\n B =x=y \n";
    assert_eq!(fields(lines), wanted(&[("A", "1"), ("B", "x=y ")]));
    let json = " {\"A\": \"1\", \"env_overrides\": {\"B\": 2}}\n";
    assert_eq!(fields(json), wanted(&[("A", "1"), ("B", "2")]));
    assert_eq!(fields(""), wanted(&[]));
}

#[test]
fn what_cannot_be_read_is_not_shown() {
    for text in [
        "hush-hush",
        "A=1\nhush-hush",
        "=hush-hush",
        "{\"A\": hush-hush}",
        "A=hush-hush\nA=hush-hush",
    ] {
        let refused = fields(text).unwrap_err();
        assert!(!refused.contains("hush"), "{refused}");
    }
}

#[test]
fn it_must_be_said_whose() {
    for words in [
        &["set", "s"][..],
        &["remove", "s"],
        &["set", "s", "--user", "a", "--default"],
        &["set", "s", "K=v", "--default"],
    ] {
        assert!(line(words).is_err(), "{words:?}");
    }
    assert!(line(&["set", "s", "--user", "ann"]).is_ok());
}

#[test]
fn the_form_is_asked_and_unknown_fields_are_noticed() {
    let server = ServerRow {
        credential_fields: Some(
            json!([{"name": "A", "label": "The A"}, {"key": "B"}, "C", 4]).to_string(),
        ),
        env_template: Some(json!({"X": "${user.D}"}).to_string()),
        url: Some("http://h/${user.E}".to_owned()),
        ..ServerRow::default()
    };
    let label = Some("The A".to_owned());
    let name = |name: &str| (name.to_owned(), None);
    assert_eq!(
        form(&server),
        [("A".to_owned(), label), name("B"), name("C")]
    );
    let known = known_fields(&server);
    assert!(
        ["A", "B", "C", "D", "E", "token"]
            .iter()
            .all(|field| known.contains(*field))
    );
}

#[tokio::test]
async fn lists_names_of_fields_and_removes() {
    let directory = tempfile::tempdir().unwrap();
    let mut settings = Settings::default();
    settings.store.data_dir = directory.path().to_owned();
    let store = open_in(directory.path()).await;
    let row = json!({"name": "books", "command": "x"})
        .as_object()
        .unwrap()
        .clone();
    let server = store.add_server(row).await.unwrap();
    let ann = Owner::User(UserId::new("ann"));
    store
        .put_credentials(&ann, &server.id, &parse("K=hush-hush").unwrap())
        .await
        .unwrap();
    let held = async || {
        let page = store.holdings(&Wanted::default(), "").await;
        page.unwrap().credentials
    };
    let shown = entry(&("books".to_owned(), held().await.remove(0)));
    assert_eq!(
        shown,
        json!({"server": "books", "user": "ann", "is_enabled": true, "fields": ["K"]})
    );

    for (verb, is_enabled) in [("disable", false), ("enable", true)] {
        let words = [verb, "books", "--user", "ann"];
        run(line(&words).unwrap(), &settings).await.unwrap();
        assert_eq!(held().await[0].is_enabled, is_enabled);
    }
    run(line(&["list", "--json"]).unwrap(), &settings)
        .await
        .unwrap();
    run(
        line(&["remove", "books", "--user", "ann"]).unwrap(),
        &settings,
    )
    .await
    .unwrap();
    assert_eq!(held().await, []);
    let missing = run(line(&["remove", "nope", "--default"]).unwrap(), &settings)
        .await
        .unwrap_err();
    assert_eq!(missing.code, ErrorCode::ServerNotFound);
}
