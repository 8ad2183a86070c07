use super::*;

fn settings(directory: &tempfile::TempDir) -> StoreSettings {
    StoreSettings {
        data_dir: directory.path().to_owned(),
        ..StoreSettings::default()
    }
}

#[tokio::test]
async fn a_command_gives_the_keys_or_a_reason() {
    let directory = tempfile::tempdir().unwrap();
    let key = Vault::generate_key();
    let file = directory.path().join("printed");
    std::fs::write(&file, key.expose()).unwrap();
    let mut settings = settings(&directory);
    settings.key_command = Some(format!("cat '{}'", file.display()));
    let keyring = Keyring::open(&settings, true).await.unwrap();
    assert_eq!(keyring.vault().ids(), Vault::new(&key).unwrap().ids());
    assert!(!directory.path().join("store.key").exists());
    for (command, part) in [
        ("exit 3", "failed: exit status: 3"),
        ("true", "is empty"),
        ("echo no-key-at-all", "is not 32 bytes"),
    ] {
        settings.key_command = Some(command.to_owned());
        let reason = Keyring::open(&settings, true).await.err().unwrap();
        assert!(reason.contains(part), "{reason}");
        assert!(!reason.contains("no-key-at-all"));
    }
}

#[tokio::test(start_paused = true)]
async fn a_command_that_never_ends_is_given_up() {
    let directory = tempfile::tempdir().unwrap();
    let mut settings = settings(&directory);
    settings.key_command = Some("exec sleep 1000".to_owned());
    let reason = Keyring::open(&settings, true).await.err().unwrap();
    assert!(reason.contains("did not end within 10s"), "{reason}");
}

#[tokio::test]
async fn a_named_file_must_be_there_and_only_one_source_be_named() {
    let directory = tempfile::tempdir().unwrap();
    let mut settings = settings(&directory);
    let path = directory.path().join("elsewhere.key");
    settings.key_file = Some(path.display().to_string());
    let reason = Keyring::open(&settings, true).await.err().unwrap();
    assert!(reason.contains("there is no key file"), "{reason}");
    files::key_file(&path).unwrap();
    assert!(Keyring::open(&settings, true).await.is_ok());
    settings.key_command = Some("true".to_owned());
    let reason = Keyring::open(&settings, true).await.err().unwrap();
    assert!(reason.contains("not several"), "{reason}");
}

/// Asked for a key that nobody has, the source is asked once and then left alone for a while.
#[tokio::test(start_paused = true)]
async fn an_unknown_key_is_looked_for_at_intervals() {
    let directory = tempfile::tempdir().unwrap();
    let settings = settings(&directory);
    let keyring = Keyring::open(&settings, true).await.unwrap();
    let other = Vault::generate_key();
    let id = Vault::new(&other).unwrap().ids()[0].to_owned();
    let stored = format!("enc1:{id}:AAAA");
    keyring.look_again().await;
    assert!(!keyring.vault().knows(&stored));
    let path = directory.path().join("store.key");
    let first = files::read_key_file(&path).unwrap();
    files::replace_key_file(&path, &[&other]).unwrap();
    keyring.look_again().await;
    assert!(!keyring.vault().knows(&stored), "not so soon again");
    tokio::time::advance(LEARN_PAUSE).await;
    keyring.look_again().await;
    assert!(keyring.vault().knows(&stored));
    let old = Vault::new(&first).unwrap().ids()[0].to_owned();
    assert!(
        keyring.vault().ids().contains(&old.as_str()),
        "still read with"
    );
}
