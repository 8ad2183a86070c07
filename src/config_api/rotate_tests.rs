use std::fs;
use std::path::PathBuf;

use super::*;
use crate::config_api::{Owner, open_in};
use crate::model::caller::UserId;
use crate::model::secret::Credentials;
use crate::model::settings::Settings;

struct Ground {
    directory: tempfile::TempDir,
    store: Store,
    server: String,
}

impl Ground {
    /// A store with the credentials of so many users and a default.
    async fn new(users: usize) -> Self {
        let directory = tempfile::tempdir().unwrap();
        let store = open_in(directory.path()).await;
        let row = serde_json::json!({"name": "books", "command": "x"});
        let row = store.add_server(row.as_object().cloned().unwrap()).await;
        let ground = Self {
            server: row.unwrap().id,
            directory,
            store,
        };
        ground.put(&Owner::Default, "the default").await;
        for user in 0..users {
            ground.put(&owner(user), &format!("secret-{user}")).await;
        }
        ground
    }

    async fn put(&self, owner: &Owner, secret: &str) {
        put(&self.store, &self.server, owner, secret).await;
    }

    fn key_file(&self) -> PathBuf {
        self.directory.path().join("store.key")
    }

    fn keys(&self) -> usize {
        fs::read_to_string(self.key_file()).unwrap().lines().count()
    }

    /// As another process would read it.
    async fn assert_readable(&self, store: &Store, users: usize) {
        for user in 0..users {
            let found = store.credentials(&owner(user), &self.server).await;
            let found = found.unwrap().unwrap();
            assert_eq!(found.get("KEY").unwrap().expose(), format!("secret-{user}"));
        }
    }
}

async fn put(store: &Store, server: &str, owner: &Owner, secret: &str) {
    let fields = [("KEY".to_owned(), Secret::new(secret))];
    let credentials = Credentials(fields.into_iter().collect());
    store
        .put_credentials(owner, server, &credentials)
        .await
        .unwrap();
}

fn owner(user: usize) -> Owner {
    Owner::User(UserId::new(&format!("user-{user}")))
}

#[tokio::test]
async fn everything_is_encrypted_again_and_the_old_key_is_gone() {
    let ground = Ground::new(250).await;
    let old = fs::read_to_string(ground.key_file()).unwrap();
    let before = ground.store.key_uses().await.unwrap();
    assert_eq!(
        (before.len(), before[0].role, before[0].rows),
        (1, "write", 251)
    );
    let rotation = ground.store.rotate_keys().await.unwrap();
    assert_eq!((rotation.rewritten, rotation.is_done), (251, true));
    assert_eq!(rotation.dropped, [before[0].id.clone().unwrap()]);
    let new = fs::read_to_string(ground.key_file()).unwrap();
    assert_eq!(ground.keys(), 1);
    assert_ne!(old, new);
    let fresh = open_in(ground.directory.path()).await;
    ground.assert_readable(&fresh, 250).await;
    let uses = fresh.key_uses().await.unwrap();
    let expected = KeyUse {
        id: Some(rotation.key),
        role: "write",
        rows: 251,
    };
    assert_eq!(uses, [expected]);
    fs::write(ground.key_file(), old).unwrap();
    let outdated = open_in(ground.directory.path()).await;
    let failure = outdated
        .credentials(&owner(0), &ground.server)
        .await
        .unwrap_err();
    assert!(failure.contains("not among the keys"), "{failure}");
}

/// Between any two steps the work may end; what others read and write then is whole.
#[tokio::test]
async fn broken_off_after_any_step_it_is_finished_by_the_next_run() {
    for steps in 0..3 {
        let ground = Ground::new(120).await;
        let daemon = open_in(ground.directory.path()).await;
        if steps > 0 {
            ground.store.put_new_key().await.unwrap();
        }
        if steps > 1 {
            ground.store.encrypt_again().await.unwrap();
        }
        assert_eq!(ground.keys(), if steps > 0 { 2 } else { 1 });
        ground.assert_readable(&daemon, 120).await;
        put(&daemon, &ground.server, &owner(7), "secret-7").await;
        let again = open_in(ground.directory.path()).await;
        let rotation = again.rotate_keys().await.unwrap();
        assert_eq!(rotation.dropped.len(), 1, "after {steps} steps");
        assert_eq!(ground.keys(), 1);
        ground.assert_readable(&daemon, 120).await;
        ground
            .assert_readable(&open_in(ground.directory.path()).await, 120)
            .await;
    }
}

/// A daemon that has known the old key only, all through the rotation.
#[tokio::test]
async fn a_daemon_writes_nothing_with_a_key_that_was_dropped() {
    let ground = Ground::new(1).await;
    let daemon = open_in(ground.directory.path()).await;
    ground.store.rotate_keys().await.unwrap();
    put(&daemon, &ground.server, &owner(0), "secret-0").await;
    let uses = open_in(ground.directory.path())
        .await
        .key_uses()
        .await
        .unwrap();
    assert_eq!(uses.len(), 1, "{uses:?}");
    ground.assert_readable(&ground.store, 1).await;
}

#[tokio::test]
async fn a_row_that_does_not_decrypt_keeps_the_old_key() {
    let ground = Ground::new(3).await;
    ground.store.database.execute(sql("UPDATE mcp_user_credentials SET credentials = 'enc1:00000000:AAAA' WHERE user_id = 'user-1'")).await.unwrap();
    let failure = ground.store.rotate_keys().await.unwrap_err();
    assert_eq!(failure.code, ErrorCode::CredentialInvalid);
    assert!(failure.message.contains("1 rows"), "{failure}");
    assert!(failure.message.contains("00000000"), "{failure}");
    assert_eq!(ground.keys(), 2, "nothing is dropped");
    let uses = ground.store.key_uses().await.unwrap();
    assert_eq!(
        uses.last().map(|last| (last.role, last.rows)),
        Some(("missing", 1))
    );
    ground.put(&owner(1), "secret-1").await;
    assert!(ground.store.rotate_keys().await.unwrap().is_done);
    ground.assert_readable(&ground.store, 3).await;
}

#[tokio::test]
async fn plain_rows_are_read_and_then_encrypted() {
    let ground = Ground::new(1).await;
    ground
        .store
        .database
        .execute(sql(
            r#"UPDATE mcp_user_credentials SET credentials = '{"KEY":"secret-0"}'"#,
        ))
        .await
        .unwrap();
    ground.assert_readable(&ground.store, 1).await;
    let uses = ground.store.key_uses().await.unwrap();
    assert_eq!(
        uses.last().map(|last| (last.role, last.rows)),
        Some(("plain", 1))
    );
    ground.store.rotate_keys().await.unwrap();
    ground.assert_readable(&ground.store, 1).await;
    let fresh = open_in(ground.directory.path()).await;
    assert_eq!(fresh.key_uses().await.unwrap().len(), 1);
}

#[tokio::test]
async fn keys_of_the_settings_are_put_there_by_hand() {
    let directory = tempfile::tempdir().unwrap();
    let (old, new) = (Vault::generate_key(), Vault::generate_key());
    let open = async |keys: String| {
        let mut settings = Settings::default();
        settings.store.data_dir = directory.path().to_owned();
        settings.store.key = Some(Secret::new(keys));
        Store::open(&settings).await.unwrap()
    };
    let store = open(old.expose().to_owned()).await;
    let row = serde_json::json!({"name": "books", "command": "x"});
    let row = store
        .add_server(row.as_object().cloned().unwrap())
        .await
        .unwrap();
    put(&store, &row.id, &owner(0), "secret-0").await;
    let failure = store.rotate_keys().await.unwrap_err();
    assert_eq!(failure.code, ErrorCode::InvalidParams);
    assert!(!failure.message.contains(old.expose()));
    let both = open(format!("{},{}", new.expose(), old.expose())).await;
    let rotation = both.rotate_keys().await.unwrap();
    assert_eq!(
        (rotation.rewritten, rotation.dropped.len(), rotation.is_done),
        (1, 1, false)
    );
    let alone = open(new.expose().to_owned()).await;
    assert!(
        alone
            .credentials(&owner(0), &row.id)
            .await
            .unwrap()
            .is_some()
    );
}
