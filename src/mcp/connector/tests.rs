use serde_json::json;

use super::super::tap::tests::{initialize, told};
use super::*;
use crate::model::error::Outcome;

#[test]
fn an_error_that_only_modern_servers_give_rules_legacy_out() {
    for (error, expected) in [
        (
            json!({"code": -32601, "message": "Method not found"}),
            false,
        ),
        (json!({"code": -32602}), false),
        (
            json!({"code": -32000, "message": "Server not initialized"}),
            false,
        ),
        (json!({"code": -32020}), true),
        (json!({"code": -32021}), true),
        (json!({"code": -32022}), true),
        (json!({"code": -32022, "data": {"supported": []}}), true),
        (
            json!({"code": -32022, "data": {"supported": ["2027-01-01", 7]}}),
            true,
        ),
        (
            json!({"code": -32022, "data": {"supported": ["2027-01-01", "2025-11-25"]}}),
            false,
        ),
        (
            json!({"code": -32021, "data": {"supported": ["2025-11-25"]}}),
            true,
        ),
        (json!({"code": "-32022"}), false),
        (json!("unsupported"), false),
        (json!(null), false),
    ] {
        assert_eq!(rules_out_legacy(&error), expected, "{error}");
    }
}

/// Code, message and finality of a negotiation to which the server gave `answer`, if any.
fn explained(
    era: Era,
    answer: Option<&str>,
    error: Option<ClientInitializeError>,
    ended: Option<&str>,
) -> (ErrorCode, String, bool) {
    let tap = Tap::new("books".into(), None);
    initialize(&tap, 0);
    if let Some(answer) = answer {
        assert_eq!(told(&tap, answer, None).len(), 1, "{answer}");
    }
    let refused = explain(&tap, era, error, ended.map(str::to_owned));
    (
        refused.failure.code,
        refused.failure.message,
        refused.is_final,
    )
}

fn closed() -> Option<ClientInitializeError> {
    Some(ClientInitializeError::ConnectionClosed("x".into()))
}

#[test]
fn a_failed_negotiation_is_told_in_the_servers_words_and_says_whether_to_go_on() {
    let unknown = r#"{"id":1,"error":{"code":-32601,"message":"no such method"}}"#;
    let modern = r#"{"id":1,"error":{"code":-32022,"message":"too old"}}"#;
    for (era, answer, error, ended, code, words, is_final) in [
        (
            Era::Modern,
            Some(unknown),
            closed(),
            None,
            ErrorCode::ServerError,
            "it refused `server/discover`: no such method",
            false,
        ),
        (
            Era::Modern,
            Some(modern),
            closed(),
            None,
            ErrorCode::ServerError,
            "it refused `server/discover`: too old",
            true,
        ),
        (
            Era::Legacy,
            Some(modern),
            closed(),
            None,
            ErrorCode::ServerError,
            "it refused `initialize`: too old",
            false,
        ),
        (
            Era::Legacy,
            Some(r#"{"id":1,"error":"go away"}"#),
            closed(),
            None,
            ErrorCode::ServerError,
            "it refused `initialize`: go away",
            false,
        ),
        (
            Era::Legacy,
            Some(r#"{"id":1,"error":{}}"#),
            closed(),
            None,
            ErrorCode::ServerError,
            "it refused `initialize`: no reason given",
            false,
        ),
        (
            Era::Modern,
            Some(r#"{"id":1}"#),
            closed(),
            None,
            ErrorCode::ProtocolError,
            "its answer to `server/discover` cannot be used: ",
            false,
        ),
        (
            Era::Legacy,
            Some(r#"{"id":1,"result":{}}"#),
            closed(),
            None,
            ErrorCode::ProtocolError,
            "its answer to `initialize` is not one of MCP",
            false,
        ),
        (
            Era::Legacy,
            None,
            None,
            None,
            ErrorCode::ConnectTimeout,
            "it did not answer `initialize` in time",
            false,
        ),
        (
            Era::Modern,
            None,
            closed(),
            Some("exit status 3"),
            ErrorCode::ConnectFailed,
            "it ended (exit status 3) before answering `server/discover`",
            false,
        ),
        (
            Era::Legacy,
            None,
            closed(),
            None,
            ErrorCode::ConnectFailed,
            "the connection was lost during `initialize`: it closed the connection",
            false,
        ),
    ] {
        let (found, message, finality) = explained(era, answer, error, ended);
        assert_eq!((found, finality), (code, is_final), "{message}");
        assert!(message.starts_with(words), "{message}");
    }
}

#[test]
fn a_server_that_was_not_reached_or_not_entered_is_not_tried_again() {
    for (code, is_final) in [
        (ErrorCode::ConnectFailed, true),
        (ErrorCode::AuthorizationRequired, true),
        (ErrorCode::ServerError, false),
        (ErrorCode::SessionLost, false),
    ] {
        for era in [Era::Modern, Era::Legacy] {
            let tap = Tap::new("books".into(), None);
            initialize(&tap, 0);
            let failure = Failure::new(code, "x").outcome(Outcome::NotSent);
            tap.settle(1, Answer::Failed(failure.clone()))
                .told()
                .expect("a handshake");
            let refused = explain(&tap, era, closed(), None);
            assert_eq!(refused.failure, failure);
            assert_eq!(
                refused.is_final,
                is_final || era == Era::Legacy,
                "{code} {era:?}"
            );
        }
    }
}

#[test]
fn a_server_speaks_for_itself() {
    let said = |era, result: Value| {
        let tap = Tap::new("books".into(), None);
        initialize(&tap, 0);
        told(&tap, &json!({"id": 1, "result": result}).to_string(), None);
        let ServerIdentity {
            protocol_version,
            server_info,
            capabilities,
        } = identity(&tap, era);
        (protocol_version, server_info, capabilities)
    };
    let legacy = json!({"protocolVersion": "2025-06-18", "serverInfo": {"name": "b", "x": 1}, "capabilities": {"tools": {"y": 2}}});
    assert_eq!(
        said(Era::Legacy, legacy),
        (
            "2025-06-18".into(),
            json!({"name": "b", "x": 1}),
            json!({"tools": {"y": 2}})
        )
    );
    let modern = json!({"supportedVersions": [MODERN], "_meta": {"io.modelcontextprotocol/serverInfo": {"name": "m"}}});
    assert_eq!(
        said(Era::Modern, modern),
        (MODERN.into(), json!({"name": "m"}), Value::Null)
    );
    assert_eq!(
        said(Era::Modern, json!({"supportedVersions": []})),
        (MODERN.into(), Value::Null, Value::Null)
    );
}
