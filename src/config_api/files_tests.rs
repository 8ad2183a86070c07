use super::*;

fn mode_of(path: &Path) -> u32 {
    path.metadata().unwrap().mode() & 0o7777
}

fn set_mode(path: &Path, mode: u32) {
    std::fs::set_permissions(path, Permissions::from_mode(mode)).unwrap();
}

#[test]
fn a_key_file_is_made_once_and_read_again() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("store.key");
    let first = key_file(&path).unwrap();
    assert_eq!(mode_of(&path), 0o600);
    assert!(key_file(&path).unwrap() == first);
    assert_eq!(
        std::fs::read_dir(directory.path()).unwrap().count(),
        1,
        "no draft is left"
    );
}

#[test]
fn a_key_file_that_others_may_read_is_refused_with_the_fix() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("store.key");
    key_file(&path).unwrap();
    for mode in [0o644, 0o640, 0o604] {
        set_mode(&path, mode);
        let refused = key_file(&path).unwrap_err();
        assert!(refused.contains("chmod 600"), "{refused}");
    }
}

#[test]
fn planted_links_are_refused() {
    let directory = tempfile::tempdir().unwrap();
    let target = directory.path().join("target");
    std::fs::write(&target, "x").unwrap();
    let link = directory.path().join("link");
    std::os::unix::fs::symlink(&target, &link).unwrap();
    assert!(key_file(&link).unwrap_err().contains("is a link"));
    assert!(private_file(&link).unwrap_err().contains("is a link"));
    let dangling = directory.path().join("dangling");
    std::os::unix::fs::symlink(directory.path().join("nowhere"), &dangling).unwrap();
    assert!(private_file(&dangling).unwrap_err().contains("is a link"));
    assert!(!directory.path().join("nowhere").exists());
}

#[test]
fn a_directory_loses_what_lets_others_write_unless_everybody_shares_it() {
    let directory = tempfile::tempdir().unwrap();
    let own = directory.path().join("own");
    std::fs::create_dir(&own).unwrap();
    set_mode(&own, 0o777);
    private_dir(&own).unwrap();
    assert_eq!(mode_of(&own), 0o755);
    set_mode(&own, 0o1777);
    assert!(
        private_dir(&own)
            .unwrap_err()
            .contains("MCP_CLIENT_DATA_DIR")
    );
    assert_eq!(mode_of(&own), 0o1777);
}
