use proptest::prelude::*;
use serde_json::json;

use super::*;
use crate::model::event::EventKind;
use crate::model::fuzz::Members;

fn read(line: &str) -> (String, Result<Command, Failure>) {
    let (task, command) = parse(&Bytes::copy_from_slice(line.as_bytes()));
    (
        String::from_utf8(task.raw().to_vec()).expect("UTF-8"),
        command,
    )
}

fn refused(line: &str) -> (String, &'static str) {
    let (task, command) = read(line);
    (task, command.expect_err(line).code.as_str())
}

fn invoked(line: &str) -> (String, Option<String>) {
    match read(line).1.expect(line).verb {
        Verb::Invoke { action, params } => {
            let params = params.map(|params| String::from_utf8(params.bytes().to_vec()));
            (action, params.transpose().expect("UTF-8"))
        }
        other => panic!("{line}: {other:?}"),
    }
}

#[test]
fn the_task_id_is_echoed_byte_for_byte() {
    for id in [
        r#""task-1""#,
        "7",
        "-1.50e3",
        r#""a\u002fb\"""#,
        "12345678901234567890123",
        r#""""#,
        "\"\u{1f600}\"",
    ] {
        assert_eq!(
            read(&format!("{{\"task_id\": {id} ,\"command\":\"ping\"}}")).0,
            id
        );
    }
    assert_eq!(read(r#"{"command":"ping"}"#).0, "null");
    assert_eq!(read(r#"{"command":"ping","task_id":null}"#).0, "null");
    for id in ["{}", "[1]", "true"] {
        let line = format!("{{\"command\":\"ping\",\"task_id\":{id}}}");
        assert_eq!(refused(&line), ("null".to_owned(), "invalid_command"));
    }
}

#[test]
fn what_is_wrong_with_a_line_is_told_apart() {
    for (line, task, code) in [
        ("nonsense", "null", "invalid_json"),
        (r#"{"task_id":1,"params":{"#, "1", "invalid_json"),
        (r#"{"task_id":"a"} x"#, "\"a\"", "invalid_json"),
        (r#"{"task_id":"a","task_id":"b" x"#, "\"a\"", "invalid_json"),
        ("[1]", "null", "invalid_command"),
        ("\"text\"", "null", "invalid_command"),
        ("[1", "null", "invalid_json"),
        (r#"{"task_id":1,"command":5}"#, "1", "invalid_command"),
        (r#"{"task_id":1,"params":[]}"#, "1", "invalid_command"),
        (r#"{"task_id":1,"params":"{}"}"#, "1", "invalid_command"),
        (r#"{"task_id":1,"user":"ann"}"#, "1", "invalid_command"),
        (
            r#"{"task_id":1,"user":{"userId":true}}"#,
            "1",
            "invalid_command",
        ),
        (
            r#"{"task_id":1,"user":{"accessToken":5}}"#,
            "1",
            "invalid_command",
        ),
        (
            r#"{"task_id":1,"user":{"userId":"a","userId":"b"}}"#,
            "1",
            "invalid_command",
        ),
        (
            r#"{"task_id":1,"command":"ping","command":"exit"}"#,
            "1",
            "invalid_command",
        ),
        (
            r#"{"task_id":1,"params":{"action":5}}"#,
            "1",
            "invalid_params",
        ),
        (
            r#"{"task_id":1,"params":{"action":"a","action":"b"}}"#,
            "1",
            "invalid_params",
        ),
        (
            r#"{"task_id":1,"params":{"timeout_ms":"5"}}"#,
            "1",
            "invalid_params",
        ),
        (
            r#"{"task_id":1,"params":{"timeout_ms":0}}"#,
            "1",
            "invalid_params",
        ),
        (
            r#"{"task_id":1,"params":{"timeoutMs":1.5}}"#,
            "1",
            "invalid_params",
        ),
        (r#"{"task_id":1,"command":"cancel"}"#, "1", "invalid_params"),
        (
            r#"{"task_id":1,"command":"cancel","params":{"target":{}}}"#,
            "1",
            "invalid_params",
        ),
    ] {
        assert_eq!(refused(line), (task.to_owned(), code), "{line}");
    }
    let (task, command) = parse(&Bytes::from_static(b"{\"task_id\":3,\"x\":\"\xff\"}"));
    assert_eq!(task.raw(), "3");
    assert_eq!(command.expect_err("not UTF-8").code, ErrorCode::InvalidJson);
}

#[test]
fn a_command_word_that_is_not_ours_is_an_action() {
    let params = r#"{"action":"x", "a":[1, 2]}"#;
    let as_command = format!(r#"{{"command":"list_servers","params":{params}}}"#);
    assert_eq!(
        invoked(&as_command),
        ("list_servers".to_owned(), Some(params.to_owned()))
    );
    assert_eq!(invoked("{}"), ("list_tools".to_owned(), None));
    assert_eq!(invoked(r#"{"command":null,"params":null}"#).0, "list_tools");
    assert_eq!(
        invoked(r#"{"command":"invoke","params":{"action":"call_tool"}}"#).0,
        "call_tool"
    );
    assert_eq!(
        invoked(r#"{"params":{"action":"p\u0069ng"},"new":1,"new":2}"#).0,
        "ping"
    );
    let deep = format!(
        "{{\"params\":{{\"x\":{}{}}}}}",
        "[".repeat(100_000),
        "]".repeat(100_000)
    );
    assert_eq!(invoked(&deep).0, "list_tools");
}

#[test]
fn params_are_a_slice_of_the_line() {
    let line = Bytes::from_static(br#"{"params":{"action":"call_tool","arguments":{}}}"#);
    let Verb::Invoke {
        params: Some(params),
        ..
    } = parse(&line).1.expect("a command").verb
    else {
        panic!("no params");
    };
    assert_eq!(params.bytes().as_ptr(), line[10..].as_ptr());
}

#[test]
fn a_user_is_a_text_or_a_number_or_nobody() {
    let caller = |user: &str| read(&format!("{{\"user\":{user}}}")).1.expect(user).caller;
    let id = |user: &str| caller(user).user.map(|user| user.to_string());
    assert_eq!(id(r#"{"userId":"ann"}"#).as_deref(), Some("ann"));
    assert_eq!(id(r#"{"user_id":"ann"}"#).as_deref(), Some("ann"));
    assert_eq!(
        id(r#"{"userId":1234567890123456789012}"#).as_deref(),
        Some("1234567890123456789012")
    );
    for nobody in [r#"{"userId":""}"#, r#"{"userId":null}"#, "{}", "null"] {
        assert_eq!(id(nobody), None, "{nobody}");
    }
    let ann =
        caller(r#"{"userId":"ann","accessToken":"jwt","sessionId":"s","name":"Ann","name":1}"#);
    assert_eq!(ann.access_token, Some(Secret::new("jwt")));
    assert_eq!(ann.session, Some(SessionId::new("s")));
    assert_eq!(caller(r#"{"accessToken":""}"#).access_token, None);
}

#[test]
fn timeouts_are_bounded() {
    let timeout = |ms: &str| {
        read(&format!("{{\"params\":{{\"timeout_ms\":{ms}}}}}"))
            .1
            .expect(ms)
            .timeout
    };
    assert_eq!(timeout("1500"), Some(Duration::from_millis(1500)));
    assert_eq!(timeout("1e3"), Some(Duration::from_secs(1)));
    assert_eq!(timeout("1e300"), Some(LONGEST_TIMEOUT));
    assert_eq!(timeout("null"), None);
}

#[test]
fn ids_are_the_same_however_they_are_escaped() {
    let id = |text: &'static str| TaskId::read(Bytes::from_static(text.as_bytes())).expect(text);
    assert!(id(r#""a-1""#).is(&id(r#""a\u002d1""#)));
    assert!(id("1").is(&id("1")));
    assert!(!id("1").is(&id("\"1\"")));
    assert!(!id("\"a\"").is(&id("\"b\"")));
}

fn text(line: Rope) -> String {
    String::from_utf8(line.concat()).expect("UTF-8")
}

#[test]
fn answers_have_their_members_in_order() {
    let task = TaskId::read(Bytes::from_static(b"\"t\"")).expect("an id");
    let redactor = Redactor::default();
    let result = Rope::from(&json!({"a": 1}));
    assert_eq!(
        text(success(&task, result)),
        r#"{"task_id":"t","result":{"a":1},"success":true}"#
    );
    let plain = Failure::new(ErrorCode::Cancelled, "line\nbreak");
    assert_eq!(
        text(failure(&TaskId::default(), plain, &redactor)),
        r#"{"task_id":null,"error":"line\nbreak","success":false,"error_code":"cancelled"}"#
    );
    let full = Failure::new(ErrorCode::ServerNotFound, "").server("books");
    assert_eq!(
        text(failure(&task, full, &redactor)),
        r#"{"task_id":"t","error":"The command failed (server_not_found)","success":false,"error_code":"server_not_found","details":{"server_name":"books"}}"#
    );
}

#[test]
fn a_payload_is_passed_on_and_not_copied() {
    let payload = Bytes::from(vec![b'1'; 1000]);
    let mut rope = Rope::default();
    rope.push(payload.clone());
    let line = success(&TaskId::default(), rope);
    assert!(
        line.pieces()
            .iter()
            .any(|piece| piece.as_ptr() == payload.as_ptr())
    );
}

#[test]
fn failures_and_events_are_scrubbed_and_stay_json() {
    let redactor = Redactor::default();
    let secrets = [Secret::new("hunter22"), Secret::new("12345678")];
    secrets.iter().for_each(|secret| redactor.learn(secret));
    let failed = Failure::new(ErrorCode::ServerError, "key hunter22").with("data", "hunter22");
    let line = text(failure(&TaskId::default(), failed, &redactor));
    assert!(
        line.contains(r#""error":"key ***""#) && line.contains(r#""data":"***""#),
        "{line}"
    );
    let told = Event::new(
        EventKind::Progress,
        "books".into(),
        RawJson::from(&json!({"progress": 12345678, "message": "hunter22", "error": 1})),
    );
    let line = text(event(
        &TaskId::default(),
        Some(&UserId::new("ann")),
        &told,
        3,
        &redactor,
    ));
    assert_eq!(
        line,
        r#"{"type":"event","event":"progress","task":null,"server_name":"books","user_id":"ann","params":{"progress":"***","message":"***","error":1},"dropped":3}"#
    );
}

#[test]
fn no_line_but_an_answer_has_the_members_of_an_answer() {
    let told = Event::new(
        EventKind::Progress,
        "books".into(),
        RawJson::from(&json!({})),
    );
    for line in [
        ready(),
        event(&TaskId::default(), None, &told, 0, &Redactor::default()),
    ] {
        let line: Value = serde_json::from_str(&text(line)).expect("JSON");
        for member in ["task_id", "error", "result", "success"] {
            assert!(line.get(member).is_none(), "{member} in {line}");
        }
    }
}

/// F1: no line makes the reader panic, what is no JSON is told so, and the id comes back as it came:
/// all of it against a reading of the line member by member.
pub(in crate::daemon) fn check_line(line: &[u8]) {
    let bytes = Bytes::copy_from_slice(line);
    let (task, command) = parse(&bytes);
    let code = command.as_ref().err().map(|failure| failure.code);
    let is_json = serde_json::from_slice::<&RawValue>(line).is_ok();
    assert_eq!(!is_json, code == Some(ErrorCode::InvalidJson));
    assert!(TaskId::read(task.raw().clone()).is_some() || task == TaskId::default());
    if let Ok(members) = serde_json::from_slice::<Members>(line) {
        let given = members.named(&["task_id", "taskId"]);
        check_id(&bytes, &task, &given);
    }
    if let (Ok(value), Ok(command)) = (serde_json::from_slice(line), &command) {
        assert_eq!(word(&command.verb), word_of(&value));
    }
}

fn check_id(line: &Bytes, task: &TaskId, given: &[&str]) {
    let is_id = |text: &&&str| text.starts_with(['"', '-']) || text.starts_with(char::is_numeric);
    let first = given.iter().find(is_id).map_or("null", |id| id);
    match given {
        [] | [_] => assert_eq!(task.raw(), first, "{}", String::from_utf8_lossy(line)),
        _ => assert!(task.raw() == "null" || given.iter().any(|id| task.raw() == id)),
    }
    let mut scan = Scan::default();
    line.chunks(3).for_each(|piece| scan.feed(piece));
    assert_eq!(scan.finish().raw(), first, "found without reading the line");
}

fn word(verb: &Verb) -> &str {
    match verb {
        Verb::Ping => "ping",
        Verb::Stats => "stats",
        Verb::Respond => "respond",
        Verb::Exit => "exit",
        Verb::Cancel { .. } => "cancel",
        Verb::Invoke { action, .. } => action,
    }
}

/// What docs/line-protocol.md says a readable command asks for.
fn word_of(line: &Value) -> &str {
    match line["command"].as_str() {
        None | Some("invoke") => line["params"]["action"].as_str().unwrap_or("list_tools"),
        Some(word) => word,
    }
}

proptest! {
    #[test]
    fn any_bytes_are_read(line in proptest::collection::vec(any::<u8>(), 0..200)) {
        check_line(&line);
    }

    #[test]
    fn any_near_json_is_read(line in r#"\{("(task_id|command|params|user|x)":("[a-z]{0,3}"|-?[0-9]{1,3}|null|\{\}|\[\]|true),?){0,5}\}?"#) {
        check_line(line.as_bytes());
    }
}
