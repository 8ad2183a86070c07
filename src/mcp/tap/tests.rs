use std::collections::BTreeMap;

use rmcp::model::{
    ClientCapabilities, CustomRequest, Implementation, InitializeRequest, InitializeRequestParams,
};

use super::*;
use crate::model::event::{Interest, TakeEvent};

/// Opens a call, the next under way.
pub(in crate::mcp) fn call(tap: &Tap, events: Option<EventSink>) -> Arc<Slot> {
    let request = Request::CallTool {
        name: "t".into(),
        arguments: RawJson::from(&json!({})),
        trace: Trace::default(),
    };
    tap.open(request, events)
}

fn sent(tap: &Tap, message: &ClientJsonRpcMessage) -> Value {
    let (line, _) = tap.outgoing(message).expect("a line");
    serde_json::from_slice(&line).expect("JSON")
}

/// Sends `initialize` under rmcp's id; returns the line for the wire.
pub(in crate::mcp) fn initialize(tap: &Tap, id: i64) -> Value {
    let identity = Implementation::new("mcp-client", "1");
    let params = InitializeRequestParams::new(ClientCapabilities::default(), identity);
    let request = ClientRequest::InitializeRequest(InitializeRequest::new(params));
    sent(
        tap,
        &ClientJsonRpcMessage::request(request, RequestId::Number(id)),
    )
}

/// What rmcp is told of a message of the server.
pub(in crate::mcp) fn told(tap: &Tap, text: &str, reply_to: Option<CallId>) -> Vec<Value> {
    let mut out = VecDeque::new();
    tap.incoming(&Bytes::copy_from_slice(text.as_bytes()), reply_to, &mut out);
    let told = out.iter().map(serde_json::to_value);
    told.collect::<Result<_, _>>().expect("JSON")
}

fn answered(slot: &Slot) -> Option<String> {
    slot.answer().map(|answer| format!("{answer:?}"))
}

/// F3: of three calls under way a message answers those it names and no other, each once.
pub(in crate::mcp) fn check_incoming(text: &[u8]) {
    let tap = Tap::new("books".into(), None);
    let slots = [1, 2, 3].map(|_| call(&tap, None));
    let text = Bytes::copy_from_slice(text);
    let mut open = vec![1, 2, 3];
    let mut expected = BTreeMap::new();
    frames(&text, |frame| {
        let Frame::Answer { id, answer } = frame else {
            return;
        };
        let only = open.first().copied().filter(|_| open.len() == 1);
        let meant = id.or(only).filter(|id| open.contains(id));
        if let Some(id) = meant {
            open.retain(|other| *other != id);
            expected.insert(id, format!("{answer:?}"));
        }
    });
    let mut out = VecDeque::new();
    tap.incoming(&text, None, &mut out);
    for slot in &slots {
        assert_eq!(answered(slot).as_ref(), expected.get(&slot.id));
    }
    let is_response = |message: &_| matches!(message, JsonRpcMessage::Response(_));
    assert!(!out.iter().any(is_response), "rmcp has asked nothing");
}

fn rendered(tap: &Tap, slot: &Slot) -> Value {
    let line = tap.render(slot);
    assert_eq!(line.iter().filter(|byte| **byte == b'\n').count(), 1);
    serde_json::from_slice(line.strip_suffix(b"\n").expect("a line")).expect("JSON")
}

#[test]
fn ids_on_the_wire_count_from_one_whoever_asks() {
    let tap = Tap::new("books".into(), None);
    assert_eq!(initialize(&tap, 0)["id"], 1);
    let slot = call(&tap, None);
    let params = json!({"_meta": {"progressToken": 2}, "name": "t", "arguments": {}});
    let expected = json!({"jsonrpc": "2.0", "id": 2, "method": "tools/call", "params": params});
    assert_eq!(rendered(&tap, &slot), expected);
    assert!(told(&tap, r#"{"id":2,"result":{"x":1}}"#, None).is_empty());
    assert_eq!(answered(&slot).as_deref(), Some(r#"Result({"x":1})"#));
    assert_eq!(initialize(&tap, 1)["id"], 3);
}

#[test]
fn a_request_that_rmcp_sends_again_keeps_its_id_and_tells_rmcp_of_its_end() {
    let tap = Tap::new("books".into(), None);
    let slot = call(&tap, None);
    let mut request = CustomRequest::new("tools/call", None);
    request.extensions.insert(RawCall(slot.clone()));
    let request = ClientRequest::CustomRequest(request);
    let again = ClientJsonRpcMessage::request(request, RequestId::Number(7));
    assert_eq!(sent(&tap, &again), rendered(&tap, &slot));
    let told = told(&tap, r#"{"id":1,"result":{"x":1}}"#, None);
    assert_eq!(told, [json!({"jsonrpc": "2.0", "id": 7, "result": {}})]);
    assert_eq!(answered(&slot).as_deref(), Some(r#"Result({"x":1})"#));
}

#[test]
fn what_a_modern_server_wants_in_every_request_stands_in_each() {
    let tap = Tap::new("books".into(), None);
    let mut discover = rmcp::model::DiscoverRequest::new(Default::default());
    let mut meta = rmcp::model::RequestMetaObject::new();
    meta.set_protocol_version(rmcp::model::ProtocolVersion::V_2026_07_28);
    discover.extensions.insert(meta);
    let request = ClientRequest::DiscoverRequest(discover);
    let message = ClientJsonRpcMessage::request(request, RequestId::Number(0));
    let name = "io.modelcontextprotocol/protocolVersion";
    assert_eq!(sent(&tap, &message)["params"]["_meta"][name], "2026-07-28");
    let line = rendered(
        &tap,
        &tap.open(
            Request::List {
                kind: crate::mcp::ListKind::Tools,
                cursor: None,
            },
            None,
        ),
    );
    assert_eq!(
        line["params"],
        json!({"_meta": {"progressToken": 2, name: "2026-07-28"}})
    );
    let cursor = Some("a\"\n".to_owned());
    let line = rendered(
        &tap,
        &tap.open(
            Request::List {
                kind: crate::mcp::ListKind::Tools,
                cursor,
            },
            None,
        ),
    );
    assert_eq!(line["params"]["cursor"], "a\"\n");
}

#[test]
fn once_the_connection_has_ended_nothing_waits() {
    let tap = Tap::new("books".into(), None);
    let before = call(&tap, None);
    tap.end();
    let after = call(&tap, None);
    for slot in [before, after] {
        assert!(matches!(slot.answer(), Some(Answer::Lost)));
        assert!(!tap.forget(slot.id));
    }
}

#[test]
fn an_answer_that_comes_too_late_is_counted_and_dropped() {
    let tap = Tap::new("books".into(), None);
    let forgotten = call(&tap, None);
    let slot = call(&tap, None);
    assert!(tap.forget(1));
    told(&tap, r#"{"id":1,"result":{}}"#, None);
    assert_eq!((answered(&forgotten), tap.noise().total()), (None, 1));
    told(&tap, r#"{"id":2,"result":1}"#, None);
    told(&tap, r#"{"id":2,"result":2}"#, None);
    assert_eq!(
        (answered(&slot).as_deref(), tap.noise().total()),
        (Some("Result(1)"), 2)
    );
}

#[test]
fn a_failure_without_an_id_strikes_the_only_call_or_the_one_it_replies_to() {
    let nameless = r#"{"id":null,"error":{"code":-32700}}"#;
    let tap = Tap::new("books".into(), None);
    let (first, second) = (call(&tap, None), call(&tap, None));
    let open = || [&first, &second].map(|slot| slot.answer().is_none());
    told(&tap, nameless, None);
    assert_eq!(open(), [true, true]);
    told(&tap, nameless, Some(2));
    assert_eq!(open(), [true, false]);
    told(&tap, nameless, None);
    assert_eq!(open(), [false, false]);
}

#[test]
fn text_that_is_no_message_breaks_the_call_it_replies_to() {
    let tap = Tap::new("books".into(), None);
    let slot = call(&tap, None);
    told(&tap, "<html>", None);
    assert_eq!((answered(&slot), tap.noise().total()), (None, 1));
    told(&tap, "<html>", Some(1));
    assert!(matches!(slot.answer(), Some(Answer::Broken(_))));
}

#[tokio::test(start_paused = true)]
async fn progress_reaches_the_call_whose_token_it_carries() {
    let (sender, receiver) = std::sync::mpsc::channel();
    let sink = |name: &'static str| -> Option<EventSink> {
        let sender = sender.clone();
        Some(Arc::new(move |event: Event| {
            let _ = sender.send((name, event));
        }))
    };
    let tap = Tap::new("books".into(), None);
    let first = call(&tap, sink("first"));
    let second = call(&tap, sink("second"));
    let progress = |token: &str| {
        let params = format!(r#"{{"progressToken":{token},"progress":1}}"#);
        let text = format!(r#"{{"method":"notifications/progress","params":{params}}}"#);
        assert!(told(&tap, &text, None).is_empty());
        params
    };
    for token in ["2", "\"2\"", "2.0"] {
        let params = progress(token);
        let (name, event) = receiver.try_recv().expect(token);
        assert_eq!(
            (name, event.kind, &*event.server_name),
            ("second", EventKind::Progress, "books")
        );
        assert_eq!(format!("{:?}", event.params), params);
    }
    assert_eq!(
        (first.last_progress(), second.last_progress()),
        (None, Some(Instant::now()))
    );
    for token in ["3", "0", "\"x\"", "null", "{}"] {
        progress(token);
    }
    told(&tap, r#"{"id":2,"result":{}}"#, None);
    progress("2");
    assert!(receiver.try_recv().is_err());
    assert_eq!(tap.noise().total(), 6);
}

#[test]
fn only_what_concerns_rmcp_reaches_it() {
    let tap = Tap::new("books".into(), None);
    let changes = tap.tools_changed();
    for quiet in [
        "tools/list_changed",
        "message",
        "progress",
        "resources/updated",
        "odd",
    ] {
        let text = format!(r#"{{"jsonrpc":"2.0","method":"notifications/{quiet}"}}"#);
        assert!(told(&tap, &text, None).is_empty(), "{quiet}");
    }
    assert_eq!(*changes.borrow(), 1);
    let ping = json!({"jsonrpc": "2.0", "id": "a", "method": "ping"});
    assert_eq!(told(&tap, &ping.to_string(), None)[0]["id"], "a");
    let odd = json!({"jsonrpc": "2.0", "id": 9, "method": "odd/one", "params": {"x": 1}});
    assert_eq!(told(&tap, &odd.to_string(), None)[0]["method"], "odd/one");
    let cancelled =
        r#"{"jsonrpc":"2.0","method":"notifications/cancelled","params":{"requestId":"a"}}"#;
    assert_eq!(told(&tap, cancelled, None)[0]["params"]["requestId"], "a");
}

#[test]
fn a_second_handshake_means_that_the_tools_may_have_changed() {
    let tap = Tap::new("books".into(), None);
    let changes = tap.tools_changed();
    let answer = |id: i64| {
        let line = initialize(&tap, id);
        let text = json!({"id": line["id"], "result": {"protocolVersion": "2025-11-25", "x": id}});
        told(&tap, &text.to_string(), None)
    };
    assert_eq!(answer(0)[0]["id"], 0);
    assert_eq!(*changes.borrow(), 0);
    assert_eq!(answer(5)[0]["id"], 5);
    assert_eq!(*changes.borrow(), 1);
    let Some(Answer::Result(raw)) = tap.handshake_answer() else {
        panic!("no result was kept");
    };
    assert_eq!(
        format!("{raw:?}"),
        r#"{"protocolVersion":"2025-11-25","x":5}"#
    );
}

#[test]
fn whatever_a_server_says_of_itself_rmcp_can_read() {
    let legacy = |name: &str, version: &str| {
        json!({
            "protocolVersion": "2025-06-18",
            "capabilities": {},
            "serverInfo": {"name": name, "version": version},
        })
    };
    for (result, expected) in [
        (json!({"protocolVersion": "2025-06-18"}), legacy("", "")),
        (
            json!({"protocolVersion": "2025-06-18", "capabilities": [], "serverInfo": {"name": "b", "version": 2}}),
            legacy("b", ""),
        ),
        (
            json!({"protocolVersion": "2025-06-18", "capabilities": {"tools": 7}, "serverInfo": "b"}),
            legacy("", ""),
        ),
        (
            json!({"supportedVersions": ["2026-07-28", 7], "capabilities": null, "ttlMs": "soon"}),
            json!({
                "resultType": "complete",
                "supportedVersions": ["2026-07-28", 7],
                "capabilities": {},
                "ttlMs": 0,
                "cacheScope": "private",
            }),
        ),
    ] {
        assert_eq!(strict_result(&result), Ok(expected), "{result}");
    }
    for odd in [
        json!(null),
        json!([]),
        json!({}),
        json!({"protocolVersion": 1}),
        json!({"supportedVersions": "x"}),
    ] {
        assert_eq!(strict_result(&odd).unwrap_err()["code"], -32600, "{odd}");
    }
}

#[test]
fn whatever_error_a_server_gives_rmcp_can_read() {
    for (error, expected) in [
        (
            json!({"code": -32601, "message": "no"}),
            json!({"code": -32601, "message": "no"}),
        ),
        (
            json!({"code": 1, "message": "x", "data": [1], "more": 2}),
            json!({"code": 1, "message": "x", "data": [1]}),
        ),
        (
            json!("broken"),
            json!({"code": -32603, "message": "broken"}),
        ),
        (
            json!({"code": 1e12, "message": {"text": "x"}}),
            json!({"code": -32603, "message": "unnamed error"}),
        ),
        (
            json!({"code": "7"}),
            json!({"code": -32603, "message": "unnamed error"}),
        ),
        (
            json!(null),
            json!({"code": -32603, "message": "unnamed error"}),
        ),
    ] {
        assert_eq!(strict_error(&error), expected, "{error}");
    }
}

#[test]
fn the_handshake_gets_its_answer_in_a_form_that_rmcp_takes() {
    let said = |answer: Answer| {
        serde_json::to_value(told_to_rmcp(RequestId::Number(4), &answer)).expect("JSON")
    };
    let raw = |value: Value| RawJson::from(&value);
    let result = said(Answer::Result(raw(
        json!({"protocolVersion": "2025-11-25"}),
    )));
    assert_eq!(
        (&result["id"], &result["result"]["protocolVersion"]),
        (&json!(4), &json!("2025-11-25"))
    );
    for (answer, code) in [
        (Answer::Result(raw(json!("x"))), -32600),
        (Answer::Error(raw(json!({"code": -32022}))), -32022),
        (Answer::Broken("x".into()), -32700),
        (Answer::TooLarge, -32700),
    ] {
        let told = said(answer);
        assert_eq!(
            (&told["id"], &told["error"]["code"]),
            (&json!(4), &json!(code))
        );
    }
    let odd = said(Answer::Result(raw(json!({"supportedVersions": [7]}))));
    assert_eq!(odd["id"], 4);
}

#[test]
fn questions_are_rendered_around_what_was_given() {
    let raw = |text: &'static str| RawJson::parse(text.into()).unwrap();
    let tap = Tap::new("books".into(), None);
    for (ask, method, members) in [
        (
            Ask::ReadResource {
                uri: "a://\"b".into(),
            },
            "resources/read",
            r#","uri":"a://\"b""#,
        ),
        (
            Ask::GetPrompt {
                name: "p".into(),
                arguments: raw(r#"{"n":"1"}"#),
            },
            "prompts/get",
            r#","name":"p","arguments":{"n":"1"}"#,
        ),
        (
            Ask::Complete {
                reference: raw(r#"{"type": "ref/prompt"}"#),
                argument: raw("{}"),
                context: Some(raw(r#"{"arguments":{}}"#)),
            },
            "completion/complete",
            r#","ref":{"type": "ref/prompt"},"argument":{},"context":{"arguments":{}}"#,
        ),
    ] {
        let slot = tap.open(Request::Ask(Box::new(ask)), None);
        let line = String::from_utf8(tap.render(&slot).to_vec()).unwrap();
        let id = slot.id;
        let expected = format!(
            "{{\"jsonrpc\":\"2.0\",\"id\":{id},\"method\":\"{method}\",\"params\":{{\"_meta\":{{\"progressToken\":{id}}}{members}}}}}\n"
        );
        assert_eq!(line, expected);
    }
}

fn log(tap: &Tap, params: Value, reply_to: Option<CallId>) {
    let text = json!({"jsonrpc": "2.0", "method": "notifications/message", "params": params});
    assert!(told(tap, &text.to_string(), reply_to).is_empty());
}

#[test]
fn a_log_message_reaches_the_call_it_is_about_and_no_other_user() {
    for (owner, to_all) in [(Some(UserId::new("ann")), "ab"), (None, "")] {
        let heard = Arc::new(Mutex::new(Vec::new()));
        let sink = |name: char| -> Option<EventSink> {
            let heard = heard.clone();
            Some(Arc::new(move |_: Event| lock(&heard).push(name)))
        };
        let tap = Tap::new("books".into(), owner);
        let _calls = [call(&tap, sink('a')), call(&tap, sink('b'))];
        let reached = || {
            let mut names = std::mem::take(&mut *lock(&heard));
            names.sort_unstable();
            String::from_iter(names)
        };
        for (params, reply_to, expected) in [
            (json!({"level": "info", "data": 1}), None, to_all),
            (json!({"level": "odd"}), None, to_all),
            (json!({"level": "info"}), Some(2), "b"),
            (json!({"level": "info"}), Some(7), ""),
            (json!({"_meta": {"progressToken": "1"}}), None, "a"),
            (json!({"_meta": {"progressToken": 7}}), None, ""),
        ] {
            log(&tap, params.clone(), reply_to);
            assert_eq!(reached(), expected, "{params} on {reply_to:?}");
        }
    }
}

#[test]
fn only_a_modern_server_is_asked_for_logs_in_the_request() {
    struct Warnings;
    impl TakeEvent for Warnings {
        fn interest(&self) -> Interest {
            Interest::default().with_logs(LogLevel::Warning)
        }

        fn take(&self, event: Event) {
            panic!("{event:?}");
        }
    }
    let tap = Tap::new("books".into(), Some(UserId::new("ann")));
    let slot = call(&tap, Some(Arc::new(Warnings)));
    let rendered = |slot: &Slot| -> Value {
        let line = tap.render(slot);
        serde_json::from_slice::<Value>(&line).expect("JSON")["params"]["_meta"].take()
    };
    assert_eq!(rendered(&slot), json!({"progressToken": 1}));
    let meta = br#","io.modelcontextprotocol/protocolVersion":"2026-07-28""#;
    tap.standing_meta.set(meta.to_vec()).expect("unset");
    assert_eq!(
        rendered(&slot)["io.modelcontextprotocol/logLevel"],
        "warning"
    );
    assert_eq!(
        rendered(&call(&tap, None))
            .as_object()
            .map(|meta| meta.len()),
        Some(2)
    );
    log(&tap, json!({"level": "notice"}), Some(1));
}
