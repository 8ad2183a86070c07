//! Plays every transcript in `tests/transcripts/` through the built program.

use std::path::{Path, PathBuf};
use std::process::{Command, Output};

fn transcripts() -> Vec<PathBuf> {
    let directory = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/transcripts");
    let entries = std::fs::read_dir(directory).expect("the directory of transcripts");
    let files = entries.map(|entry| entry.expect("an entry").path());
    let mut files: Vec<PathBuf> = files
        .filter(|file| file.extension().is_some_and(|ext| ext == "txt"))
        .collect();
    files.sort();
    files
}

fn play(arguments: &[&str], file: &Path) -> Output {
    Command::new(env!("CARGO_BIN_EXE_mcp-client"))
        .args(["transcript", "--fresh"])
        .args(arguments)
        .arg(file)
        .output()
        .expect("the program starts")
}

fn text(bytes: &[u8]) -> String {
    String::from_utf8_lossy(bytes).into_owned()
}

#[test]
fn every_transcript_goes_as_written() {
    let files = transcripts();
    assert!(files.len() >= 3, "{files:?}");
    for file in files {
        let played = play(&[], &file);
        assert!(played.status.success(), "{}", text(&played.stderr));
    }
}

#[test]
fn a_difference_is_shown_and_update_mends_it() {
    let directory = tempfile::tempdir().expect("a directory");
    let file = directory.path().join("ping.txt");
    let expected = r#"< {"task_id":1,"result":{"pong":false,"timestamp":"<number>","...":true},"success":true}"#;
    std::fs::write(
        &file,
        format!("# Ping.\n> {{\"command\":\"ping\",\"task_id\":1}}\n{expected}\n"),
    )
    .expect("written");
    let played = play(&[], &file);
    assert_eq!(played.status.code(), Some(1));
    let report = text(&played.stderr);
    assert!(
        report.contains("line 2") && report.contains("-    \"pong\": false"),
        "{report}"
    );
    assert!(report.contains("+    \"pong\": true"), "{report}");
    assert!(play(&["--update"], &file).status.success());
    let updated = std::fs::read_to_string(&file).expect("read");
    assert_eq!(
        updated,
        format!(
            "# Ping.\n> {{\"command\":\"ping\",\"task_id\":1}}\n{}\n",
            expected.replace("false", "true")
        )
    );
    assert!(play(&[], &file).status.success());
}

#[test]
fn a_setup_that_fails_ends_the_transcript_with_its_error() {
    let directory = tempfile::tempdir().expect("a directory");
    let file = directory.path().join("setup.txt");
    std::fs::write(&file, "$ no-such-subcommand\n").expect("written");
    let played = play(&[], &file);
    assert_eq!(played.status.code(), Some(1));
    let report = text(&played.stderr);
    assert!(
        report.contains("line 1") && report.contains("no-such-subcommand"),
        "{report}"
    );
    std::fs::write(&file, "$ no-such-subcommand\n? 2\n").expect("written");
    assert!(play(&[], &file).status.success());
}
