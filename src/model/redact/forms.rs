//! The forms in which a secret turns up.

use base64::Engine as _;
use base64::engine::general_purpose::{STANDARD, STANDARD_NO_PAD, URL_SAFE, URL_SAFE_NO_PAD};
use percent_encoding::{AsciiSet, CONTROLS, NON_ALPHANUMERIC, utf8_percent_encode};
use zeroize::Zeroizing;

/// What `encodeURIComponent` and its like leave alone.
const COMPONENT: &AsciiSet = &NON_ALPHANUMERIC
    .remove(b'-')
    .remove(b'_')
    .remove(b'.')
    .remove(b'~');

/// What a URL parser escapes in a query.
const QUERY: &AsciiSet = &CONTROLS.add(b' ').add(b'"').add(b'#').add(b'<').add(b'>');

/// `secret` as it is and in every form it is looked for in; no form twice.
pub fn forms(secret: &str) -> Vec<Zeroizing<String>> {
    // Only whole groups of three bytes read the same inside a longer base64.
    let whole = &secret.as_bytes()[..secret.len() / 3 * 3];
    let json = serde_json::Value::from(secret).to_string();
    let percent = utf8_percent_encode(secret, COMPONENT).to_string();
    let mut forms = vec![
        secret.to_owned(),
        STANDARD.encode(secret),
        STANDARD_NO_PAD.encode(secret),
        STANDARD.encode(whole),
        URL_SAFE.encode(secret),
        URL_SAFE_NO_PAD.encode(secret),
        URL_SAFE.encode(whole),
        percent.replace("%20", "+"),
        lower_hex(&percent),
        percent,
        utf8_percent_encode(secret, QUERY).to_string(),
        json_ascii(&json),
        json[1..json.len() - 1].to_owned(),
    ];
    forms.sort_unstable();
    forms.dedup();
    forms.into_iter().map(Zeroizing::new).collect()
}

/// `%2F` as `%2f`.
fn lower_hex(percent: &str) -> String {
    let mut lower = String::with_capacity(percent.len());
    let mut digits = 0;
    for letter in percent.chars() {
        if digits > 0 {
            digits -= 1;
            lower.push(letter.to_ascii_lowercase());
        } else {
            digits = if letter == '%' { 2 } else { 0 };
            lower.push(letter);
        }
    }
    lower
}

/// The inside of a JSON string with everything beyond ASCII escaped.
fn json_ascii(quoted: &str) -> String {
    let mut escaped = String::with_capacity(quoted.len());
    for letter in quoted[1..quoted.len() - 1].chars() {
        if letter.is_ascii() {
            escaped.push(letter);
        } else {
            let mut units = [0; 2];
            for unit in letter.encode_utf16(&mut units) {
                escaped.push_str(&format!("\\u{unit:04x}"));
            }
        }
    }
    escaped
}
