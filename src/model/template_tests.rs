use proptest::prelude::*;

use super::*;

fn one<'a>(name: &'a str, value: &'a str) -> impl Fn(&str) -> Option<&'a str> {
    move |field| (field == name).then_some(value)
}

fn nothing(_: &str) -> Option<&'static str> {
    None
}

fn map(pairs: &[(&str, &str)]) -> BTreeMap<String, String> {
    let pairs = pairs.iter();
    pairs
        .map(|(name, value)| ((*name).to_owned(), (*value).to_owned()))
        .collect()
}

fn refused(flaw: &Flaw) -> Option<&str> {
    match flaw {
        Flaw::Refused { field, .. } => Some(field),
        _ => None,
    }
}

#[test]
fn fills_in_fields_and_leaves_the_rest() {
    let fields = one("A", "v");
    for (template, text) in [
        ("${user.A}", "v"),
        ("x${user.A}y${user.A}", "xvyv"),
        ("$${user.A}", "${user.A}"),
        ("$$${user.A}", "$${user.A}"),
        ("${${user.A}}", "${v}"),
        (
            "sh -c 'echo ${HOME} ${B:-${user.A}} $1 ${'",
            "sh -c 'echo ${HOME} ${B:-v} $1 ${'",
        ),
        ("${ user.A}", "${ user.A}"),
        ("", ""),
    ] {
        assert_eq!(
            expand(template, Place::Env, &fields).as_deref(),
            Ok(text),
            "{template}"
        );
    }
}

#[test]
fn tells_which_fields_a_template_names() {
    let named: Vec<_> = fields_named("${user.A} $${user.B} ${NAME} x${user.c-d}").collect();
    assert_eq!(named, ["A", "c-d"]);
}

#[test]
fn names_the_field_that_is_missing() {
    for field in ["A", "a.b-c_1", "_"] {
        let template = format!("x${{user.{field}}}");
        let missing = expand(&template, Place::Env, &nothing);
        assert_eq!(missing, Err(Flaw::Missing(field.to_owned())));
    }
}

#[test]
fn a_misspelt_field_is_the_templates_fault() {
    for template in ["${user.}", "${user.1A}", "${user.A B}"] {
        let flaw = expand(template, Place::Env, &nothing);
        assert!(matches!(flaw, Err(Flaw::Template(_))), "{template}");
    }
}

#[test]
fn what_was_put_in_is_never_expanded() {
    let values = [
        "${user.A}",
        "$${user.A}",
        "${NAME}",
        "${user.${user.A}}",
        "$${",
        "${",
    ];
    let env = map(&[("NAME", "x")]);
    for value in values {
        for place in [Place::Arg, Place::Env, Place::Header(&env)] {
            let text = expand("=${user.A}", place, &one("A", value));
            assert_eq!(text, Ok(format!("={value}")));
        }
    }
}

#[test]
fn headers_name_the_env_map_of_the_same_server_once() {
    let env = map(&[("KEY", "k-${user.A}-${KEY}"), ("user.A", "no")]);
    let header = |template| expand(template, Place::Header(&env), &one("A", "v"));
    assert_eq!(header("Bearer ${KEY}").as_deref(), Ok("Bearer k-v-${KEY}"));
    assert_eq!(header("${user.A} $${KEY}").as_deref(), Ok("v ${KEY}"));
    for template in ["${HOME}", "${}", "${", "${KEY"] {
        assert!(
            matches!(header(template), Err(Flaw::Template(_))),
            "{template}"
        );
    }
}

#[test]
fn a_value_may_not_make_an_argument_an_option() {
    for (template, value, fine) in [
        ("${user.A}", "-x", false),
        ("${user.A}", "--config=/etc/x", false),
        ("${user.A}", "x-", true),
        ("--key=${user.A}", "-x", true),
        ("-${user.A}", "-x", true),
        ("$${user.A}${user.A}", "-x", true),
        ("${user.A}-rest", "", false),
    ] {
        let text = expand(template, Place::Arg, &one("A", value));
        assert_eq!(text.is_ok(), fine, "{template} {value}");
        assert!(fine || refused(&text.unwrap_err()) == Some("A"));
    }
    let empty_then_dash = |field: &str| Some(if field == "A" { "" } else { "-x" });
    assert!(expand("${user.A}${user.B}", Place::Arg, &empty_then_dash).is_err());
    assert!(expand("${user.A}", Place::Env, &one("A", "-x")).is_ok());
}

#[test]
fn refuses_values_that_break_out_of_their_place() {
    let env = BTreeMap::new();
    for value in ["a\rb", "a\nb", "a\0b", "a\tb", "a\x7fb", "a\u{85}b", "é"] {
        let text = expand("${user.A}", Place::Header(&env), &one("A", value));
        assert_eq!(refused(&text.unwrap_err()), Some("A"), "{value:?}");
    }
    for place in [Place::Arg, Place::Env] {
        assert!(expand("${user.A}", place, &one("A", "a\0b")).is_err());
        assert!(expand("${user.A}", place, &one("A", "line\nline é\t")).is_ok());
    }
    let through_env = map(&[("KEY", "${user.A}")]);
    let text = expand("${KEY}", Place::Header(&through_env), &one("A", "a\nb"));
    assert_eq!(refused(&text.unwrap_err()), Some("A"));
}

#[test]
fn a_url_keeps_its_origin() {
    let url = |template, value| expand_url(template, &one("A", value));
    assert_eq!(
        url("https://h/p/${user.A}?q=${user.A}#x", "../..?a b&é").as_deref(),
        Ok("https://h/p/..%2F..%3Fa%20b%26%C3%A9?q=..%2F..%3Fa%20b%26%C3%A9#x")
    );
    for template in [
        "${user.A}://h/",
        "https://${user.A}/",
        "https://${user.A}.example.com/",
        "https://h:${user.A}/",
        "https://h:8${user.A}/",
        "https://h${user.A}",
        "${user.A}",
    ] {
        assert!(
            matches!(url(template, "x"), Err(Flaw::Template(_))),
            "{template}"
        );
    }
    for template in [
        "",
        "h/p",
        "ftp://h/",
        "file:///etc/passwd",
        "https://",
        "javascript:1",
    ] {
        assert!(
            matches!(url(template, "x"), Err(Flaw::Template(_))),
            "{template}"
        );
    }
    for dots in [".", ".."] {
        let flaw = url("https://h/a/${user.A}/b", dots).unwrap_err();
        assert_eq!(refused(&flaw), Some("A"));
    }
    assert_eq!(url("https://h/", "x").as_deref(), Ok("https://h/"));
}

#[test]
fn headers_are_set_once_and_some_never() {
    let none = BTreeMap::new();
    let set = |pairs: &[(&str, &str)]| expand_headers(&map(pairs), &none, &nothing);
    let twice = set(&[("X-Key", "a"), ("x-key", "b")]);
    assert!(matches!(twice, Err(Flaw::Template(reason)) if reason.contains("twice")));
    for name in [
        "Host",
        "content-length",
        "Transfer-Encoding",
        "CONNECTION",
        "Mcp-Session-Id",
        "mcp-x",
    ] {
        assert!(
            matches!(set(&[(name, "a")]), Err(Flaw::Template(_))),
            "{name}"
        );
    }
    for (name, value) in [
        ("bad name", "a"),
        ("", "a"),
        ("X-A", "a\nb"),
        ("X-A", "a\0"),
        ("X-A", "a\tb"),
    ] {
        assert!(
            matches!(set(&[(name, value)]), Err(Flaw::Template(_))),
            "{name:?} {value:?}"
        );
    }
    let list = set(&[("X-A", "grün"), ("Cookie", "c=1")]).unwrap();
    assert!(list.iter().all(|(_, value)| value.is_sensitive()));
    assert!(!format!("{list:?}").contains("c=1"));
}

/// Text that likes to look like placeholders.
fn tricky() -> impl Strategy<Value = String> {
    let piece = prop_oneof![
        Just("${user.A}".to_owned()),
        Just("${user.B}".to_owned()),
        Just("${".to_owned()),
        Just("$${".to_owned()),
        Just("$".to_owned()),
        Just("}".to_owned()),
        Just("${NAME}".to_owned()),
        Just("-".to_owned()),
        "[ -~]{0,6}",
        ".{0,3}",
    ];
    prop::collection::vec(piece, 0..8).prop_map(|pieces| pieces.concat())
}

proptest! {
    /// F5: an escaped text expands to itself.
    #[test]
    fn escaping_is_undone(text in tricky()) {
        let escaped = text.replace("${", "$${");
        prop_assert_eq!(expand(&escaped, Place::Env, &nothing), Ok(text.clone()));
        let env = BTreeMap::new();
        prop_assert_eq!(expand(&escaped, Place::Header(&env), &nothing), Ok(text));
    }

    /// F5: the values are put in as they are, and never looked at: putting in marks and replacing
    /// these afterwards comes to the same.
    #[test]
    fn one_pass(template in tricky(), a in tricky(), b in tricky()) {
        let template = template.replace(['\u{1}', '\u{2}'], "");
        let (a, b) = (a.replace('\0', ""), b.replace('\0', ""));
        let marks = |field: &str| match field { "A" => Some("\u{1}"), "B" => Some("\u{2}"), _ => None };
        let values = |field: &str| match field { "A" => Some(a.as_str()), "B" => Some(b.as_str()), _ => None };
        let marked = expand(&template, Place::Env, &marks);
        let filled = expand(&template, Place::Env, &values);
        match marked {
            Ok(marked) => {
                let mut wanted = String::new();
                for letter in marked.chars() {
                    match letter {
                        '\u{1}' => wanted.push_str(&a),
                        '\u{2}' => wanted.push_str(&b),
                        other => wanted.push(other),
                    }
                }
                let uses = template.len() / "${user.A}".len();
                prop_assert!(wanted.len() <= template.len() + uses * a.len().max(b.len()));
                prop_assert_eq!(filled, Ok(wanted));
            }
            Err(flaw) => prop_assert_eq!(filled, Err(flaw)),
        }
    }

    /// F5: of an unknown field, the error names it and nothing else is looked up.
    #[test]
    fn unknown_fields_are_named(before in "[ -#%-~]{0,9}", field in "[A-Za-z_][A-Za-z0-9_.-]{0,8}") {
        let template = format!("{before}${{user.{field}}}");
        prop_assert_eq!(expand(&template, Place::Env, &nothing), Err(Flaw::Missing(field)));
    }

    /// T11: an argument that begins with a placeholder never comes out as an option.
    #[test]
    fn no_value_makes_an_option(a in "-{0,3}[a-z=]{0,4}", rest in tricky()) {
        let template = format!("${{user.A}}{rest}");
        if let Ok(text) = expand(&template, Place::Arg, &one("A", &a)) {
            prop_assert!(!text.starts_with('-'), "{}", text);
        }
    }

    /// F6: whatever goes in, what comes out are legal headers, one of a name, none reserved, all
    /// sensitive.
    #[test]
    fn headers_are_legal(
        headers in prop::collection::btree_map("[A-Za-z-]{0,6}|Host|host|Mcp-A|X-A|x-a", tricky(), 0..5),
        env in prop::collection::btree_map(Just("NAME".to_owned()), tricky(), 0..2),
        a in ".{0,8}",
    ) {
        let fields = |field: &str| match field { "A" | "B" => Some(a.as_str()), _ => None };
        if let Ok(list) = expand_headers(&headers, &env, &fields) {
            prop_assert_eq!(list.len(), headers.len());
            let names: std::collections::BTreeSet<_> = list.iter().map(|(name, _)| name.as_str()).collect();
            prop_assert_eq!(names.len(), list.len());
            for (name, value) in &list {
                prop_assert!(!RESERVED_HEADERS.contains(&name.as_str()) && !name.as_str().starts_with("mcp-"));
                prop_assert!(value.is_sensitive());
                prop_assert!(value.as_bytes().iter().all(|byte| *byte >= 0x20 && *byte != 0x7f));
            }
        }
    }

    /// F7: no value moves a url to another origin or to another depth of path, and expanding is
    /// settled after one go.
    #[test]
    fn urls_stay_where_they_are(
        path in "(/[a-z]{0,3}|/\\$\\{user\\.A\\}|/x\\$\\{user\\.A\\}y){1,4}",
        query in "(\\?q=\\$\\{user\\.A\\})?",
        a in "\\.{0,3}|.{0,8}|[/?#@:\\\\%.a-z]{0,8}",
    ) {
        let template = format!("https://api.example.com:8443{path}{query}");
        if let Ok(text) = expand_url(&template, &one("A", &a)) {
            let url = Url::parse(&text).unwrap();
            let plain = Url::parse(&template.replace("${user.A}", "1")).unwrap();
            prop_assert_eq!(url.origin(), plain.origin());
            prop_assert_eq!(url.path_segments().unwrap().count(), plain.path_segments().unwrap().count());
            prop_assert_eq!(url.username(), "");
            prop_assert_eq!(url.fragment(), None);
            prop_assert_eq!(expand_url(&text, &nothing), Ok(text));
        } else {
            prop_assert!(a == "." || a == "..");
        }
    }
}

#[test]
fn plain_http_stays_near() {
    for near in [
        "http://localhost/mcp",
        "http://a.localhost:80",
        "http://books:8000/mcp",
        "http://127.0.0.2:3000",
        "http://[::1]/",
        "http://10.0.0.7",
        "http://192.168.1.1/${user.ID}",
        "http://172.16.0.1",
        "http://169.254.0.1",
        "http://[fd00::1]",
        "http://[::ffff:127.0.0.1]",
        "http://2130706433/",
        "https://mcp.example.com",
    ] {
        assert!(!is_plain_and_remote(near), "{near}");
    }
    for far in [
        "http://mcp.example.com/${user.ID}",
        "http://8.8.8.8",
        "http://172.32.0.1",
        "http://localhost.example.com",
        "http://[2001:db8::1]",
        "HTTP://mcp.example.com",
    ] {
        assert!(is_plain_and_remote(far), "{far}");
    }
}
