use base64::Engine as _;
use base64::engine::general_purpose::{STANDARD, URL_SAFE_NO_PAD};
use proptest::prelude::*;
use serde_json::json;
use zeroize::Zeroizing;

use super::*;
use crate::model::error::{ErrorCode, Phase};

fn knowing(secrets: &[&Secret]) -> Redactor {
    let redactor = Redactor::default();
    secrets.iter().for_each(|secret| redactor.learn(secret));
    redactor
}

#[test]
fn a_secret_is_masked_in_every_form() {
    let secret = Secret::new("p\u{e4}ss/w\"rd +1");
    let redactor = knowing(&[&secret]);
    let value = secret.expose();
    let shown = [
        value.to_owned(),
        STANDARD.encode(value),
        URL_SAFE_NO_PAD.encode(value),
        "p%C3%A4ss%2Fw%22rd%20%2B1".to_owned(),
        "p%c3%a4ss%2fw%22rd%20%2b1".to_owned(),
        "p%C3%A4ss%2Fw%22rd+%2B1".to_owned(),
        "p\u{e4}ss/w\\\"rd +1".to_owned(),
        "p\\u00e4ss/w\\\"rd +1".to_owned(),
    ];
    for form in shown {
        assert_eq!(redactor.scrub(&format!("a {form} b")), "a *** b", "{form}");
    }
    let longer = STANDARD.encode(format!("abc{value}and more"));
    let whole = STANDARD.encode(&value.as_bytes()[..value.len() / 3 * 3]);
    assert!(longer.contains(&whole));
    assert!(!redactor.scrub(&longer).contains(&whole));
}

#[test]
fn ordinary_words_stay_and_cost_nothing() {
    let short = Secret::new("12345");
    let redactor = knowing(&[&short]);
    assert!(matches!(
        redactor.scrub("port 12345 is open"),
        Cow::Borrowed(_)
    ));
}

#[test]
fn secrets_side_by_side_and_across_layers_are_masked_once() {
    let (first, second) = (Secret::new("abcdefgh"), Secret::new("efghijkl"));
    let redactor = knowing(&[&first]);
    assert_eq!(redactor.scrub("abcdefgh"), "***");
    redactor.learn(&second);
    assert_eq!(redactor.scrub("xabcdefghijklx"), "x***x");
    assert_eq!(redactor.scrub("abcdefghabcdefgh!"), "***!");
}

#[test]
fn headers_are_masked_whoever_sent_them() {
    let redactor = Redactor::default();
    for (text, expected) in [
        (
            "Authorization: Bearer abc.def failed",
            "Authorization: *** failed",
        ),
        (
            r#"{"authorization":"Basic YWJj","x":1}"#,
            r#"{"authorization":"***","x":1}"#,
        ),
        (r#"{\"X-API-Key\": \"k\"}"#, r#"{\"X-API-Key\": \"***\"}"#),
        ("cookie=a=b; c=d\nnext", "cookie=***\nnext"),
        (
            "Proxy-Authorization: Digest u=\"x\"",
            "Proxy-Authorization: ***\"x\"",
        ),
        ("no authorization was given", "no authorization was given"),
    ] {
        assert_eq!(redactor.scrub(text), expected);
    }
}

#[test]
fn a_header_is_masked_to_its_end_where_a_secret_in_it_looks_like_its_end() {
    for end in ["\"", "\\", ",", ";", " ", "\n"] {
        let secret = Secret::new(format!("se{end}cret"));
        let redactor = knowing(&[&secret]);
        for name in ["cookie=", "Authorization: ", "X-API-Key: "] {
            let text = format!("{name}{}rest", secret.expose());
            assert_eq!(redactor.scrub(&text), format!("{name}***"));
        }
    }
}

#[test]
fn a_failure_keeps_its_own_words() {
    let secret = Secret::new("initialize");
    let failure = Failure::new(ErrorCode::ServerError, "said initialize")
        .server("initialize")
        .phase(Phase::Initialize)
        .with("stderr", json!(["x initialize y"]))
        .with(
            "data",
            json!({"initialize": {"deep": "initialize"}, "n": 1}),
        );
    let scrubbed = knowing(&[&secret]).scrub_failure(failure);
    assert_eq!(scrubbed.message, "said ***");
    assert_eq!(
        Value::Object(scrubbed.details),
        json!({
            "server_name": "initialize",
            "phase": "initialize",
            "stderr": ["x *** y"],
            "data": {"initialize": {"deep": "***"}, "n": 1},
        })
    );
}

#[test]
fn a_number_that_is_a_secret_is_masked_as_a_text() {
    let secret = Secret::new("12345678");
    let mut value = json!({"pin": 12345678, "n": 7});
    knowing(&[&secret]).scrub_json(&mut value);
    assert_eq!(value, json!({"pin": "***", "n": 7}));
}

fn count(redactor: &Redactor) -> usize {
    redactor.known().count()
}

#[test]
fn a_value_is_known_while_anybody_holds_it_and_forgotten_then() {
    let redactor = Redactor::default();
    let first = Secret::new("shared-value");
    redactor.learn(&first);
    let second = Secret::new("shared-value");
    redactor.learn(&second);
    drop(first);
    let others: Vec<_> = (0..200)
        .map(|n| Secret::new(format!("other-value-{n}")))
        .collect();
    others.iter().for_each(|other| redactor.learn(other));
    assert_eq!(redactor.scrub("shared-value"), "***");
    drop(second);
    let more: Vec<_> = (0..400)
        .map(|n| Secret::new(format!("third-value-{n}")))
        .collect();
    more.iter().for_each(|other| redactor.learn(other));
    assert_eq!(
        redactor.scrub("shared-value other-value-7"),
        "shared-value ***"
    );
}

#[test]
fn values_that_come_and_go_leave_no_trace() {
    let redactor = Redactor::default();
    let kept = Secret::new("kept-value");
    for n in 0..10_000 {
        redactor.learn(&kept);
        redactor.learn(&Secret::new("kept-value"));
        redactor.learn(&Secret::new(format!("passing-{n}")));
    }
    assert_eq!(redactor.scrub("kept-value"), "***");
    assert!(count(&redactor) <= 200, "{}", count(&redactor));
}

#[test]
fn twenty_thousand_secrets_are_each_found_as_soon_as_they_are_learned() {
    let redactor = Redactor::default();
    let secrets: Vec<_> = (0..20_000)
        .map(|n| Secret::new(format!("eyJhbGciOi-{n:06}")))
        .collect();
    for secret in &secrets {
        redactor.learn(secret);
        assert_eq!(redactor.scrub(secret.expose()), "***");
    }
    assert_eq!(count(&redactor), 20_000);
    assert_eq!(redactor.scrub(secrets[0].expose()), "***");
    assert_eq!(redactor.scrub("eyJhbGciOi-02000x"), "eyJhbGciOi-02000x");
}

#[test]
fn of_forms_that_begin_alike_the_longest_is_masked() {
    let secrets = ["abcdef", "abcdefgh", "abcdefghij", "abcdefgz"].map(Secret::new);
    let redactor = knowing(&secrets.each_ref());
    for (text, expected) in [
        ("abcdefghijk", "***k"),
        ("abcdefghix", "***ix"),
        ("abcdefgx", "***gx"),
        ("abcdefgzx", "***x"),
        ("abcdex", "abcdex"),
    ] {
        assert_eq!(redactor.scrub(text), expected);
    }
}

#[test]
fn no_beginning_of_a_secret_stands_at_a_cut() {
    let secret = Secret::new("gh\u{fc}p_secret_token");
    let redactor = knowing(&[&secret]);
    for cut in 1..secret.expose().len() {
        let line = format!("the key {}", secret.expose());
        let bytes = &line.as_bytes()["the key ".len() - 8..8 + cut];
        let text = String::from_utf8_lossy(bytes);
        assert_eq!(redactor.scrub_cut(&text), "the key ", "cut at {cut}");
    }
    assert_eq!(redactor.scrub_cut("all is well"), "all is well");
}

fn secrets() -> impl Strategy<Value = Vec<String>> {
    let value = prop_oneof!["[ab*]{6,9}", "[a-c/+\" \u{e4}]{6,20}", "\\PC{6,30}"];
    proptest::collection::vec(value, 1..8)
}

/// F8: no secret in any form survives, wherever it stands and whatever stands around it.
///
/// `picks`: what the text is made of, each a form of one of the secrets (counted through) behind some
/// other text. The secrets are learned while the text grows.
pub(super) fn check_scrubbed(values: Vec<String>, picks: &[(usize, String)]) {
    let secrets: Vec<_> = values.into_iter().map(Secret::new).collect();
    let redactor = Redactor::default();
    let mut text = String::new();
    let all: Vec<_> = secrets
        .iter()
        .flat_map(|secret| forms::forms(secret.expose()))
        .collect();
    for (n, (form, around)) in picks.iter().enumerate() {
        text.push_str(around);
        text.push_str(&all[form % all.len()]);
        if let Some(secret) = secrets.get(n) {
            redactor.learn(secret);
            redactor.scrub(&text);
        }
    }
    secrets.iter().for_each(|secret| redactor.learn(secret));
    let scrubbed = redactor.scrub(&text);
    for form in &all {
        let form = form.as_str();
        assert!(!scrubbed.contains(form), "{form:?} in {scrubbed:?}");
    }
    assert_eq!(redactor.scrub(&scrubbed), scrubbed);
    check_cuts(&redactor, &all, &text);
}

/// Wherever the text is cut, no whole form is left of it.
fn check_cuts(redactor: &Redactor, all: &[Zeroizing<String>], text: &str) {
    for at in (0..text.len())
        .filter(|at| text.is_char_boundary(*at))
        .step_by(7)
    {
        let left = redactor.scrub_cut(&text[..at]);
        let shown = all.iter().find(|form| left.contains(form.as_str()));
        assert!(shown.is_none(), "{shown:?} in {left:?}");
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]
    #[test]
    fn no_secret_survives(values in secrets(), picks in proptest::collection::vec((any::<usize>(), "[ab* ]{0,4}"), 0..6)) {
        check_scrubbed(values, &picks);
    }

    #[test]
    fn text_without_secrets_is_unchanged(text in "[0-9 .]{0,80}") {
        let secret = Secret::new("abcdefgh");
        let redactor = knowing(&[&secret]);
        prop_assert!(matches!(redactor.scrub(&text), Cow::Borrowed(same) if same == text));
    }

    /// Wherever a text is cut, what is left shows no more than the beginning of `***` or ordinary text.
    #[test]
    fn a_cut_shows_no_beginning(before in "[0-9 ]{0,20}", at in 0usize..40) {
        let secret = Secret::new("tok-ABCDEFGHIJKLMNOPQRS");
        let text = format!("{before}{}", secret.expose());
        let cut = &text[..at.min(text.len())];
        let left = knowing(&[&secret]).scrub_cut(cut);
        prop_assert!(!left.contains('t'), "{left:?}");
    }
}
