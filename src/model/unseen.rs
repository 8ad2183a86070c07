//! Characters that a person does not see and a model reads: what a poisoned description hides
//! instructions in. They are named, never removed.

use super::error::words;

words! {
    /// What such a character does.
    Unseen {
        Control = "control",
        Bidirectional = "bidirectional",
        Tag = "tag",
        Hidden = "hidden",
    }
}

/// The kinds that occur in a JSON text, its escapes decoded; the text need not be valid.
pub fn in_json(text: &[u8]) -> Vec<Unseen> {
    if text.is_ascii() && !text.contains(&b'\\') {
        return Vec::new();
    }
    let mut found = Vec::new();
    for_each_char(&String::from_utf8_lossy(text), |letter| {
        if let Some(kind) = kind_of(letter)
            && !found.contains(&kind)
        {
            found.push(kind);
        }
    });
    found.sort_by_key(|kind| *kind as usize);
    found
}

fn kind_of(letter: char) -> Option<Unseen> {
    match letter {
        '\t' | '\n' | '\r' => None,
        _ if letter.is_control() => Some(Unseen::Control),
        '\u{202a}'..='\u{202e}' | '\u{2066}'..='\u{2069}' => Some(Unseen::Bidirectional),
        '\u{200e}' | '\u{200f}' | '\u{61c}' => Some(Unseen::Bidirectional),
        '\u{e0000}'..='\u{e007f}' => Some(Unseen::Tag),
        // Without the joiners and the selector that emoji and Persian are written with.
        '\u{ad}' | '\u{200b}' | '\u{2060}'..='\u{2064}' | '\u{feff}' | '\u{180e}' => {
            Some(Unseen::Hidden)
        }
        '\u{115f}' | '\u{1160}' | '\u{3164}' | '\u{ffa0}' => Some(Unseen::Hidden),
        '\u{fe00}'..='\u{fe0d}' | '\u{e0100}'..='\u{e01ef}' => Some(Unseen::Hidden),
        _ => None,
    }
}

/// The characters of a JSON text with its escapes decoded. Half a surrogate pair is none.
fn for_each_char(text: &str, mut take: impl FnMut(char)) {
    let mut rest = text;
    while let Some(at) = rest.find('\\') {
        rest[..at].chars().for_each(&mut take);
        rest = &rest[at + 1..];
        if let Some((letter, length)) = unicode_escape(rest) {
            take(letter);
            rest = &rest[length..];
            continue;
        }
        let mut letters = rest.chars();
        match letters.next() {
            Some('b') => take('\u{8}'),
            Some('f') => take('\u{c}'),
            _ => {}
        }
        rest = letters.as_str();
    }
    rest.chars().for_each(take);
}

/// The character of `uXXXX`, or of `uXXXX\uXXXX`, and the length of either.
fn unicode_escape(text: &str) -> Option<(char, usize)> {
    let unit = |text: &str| u32::from_str_radix(text.strip_prefix('u')?.get(..4)?, 16).ok();
    let first = unit(text)?;
    if let Some(letter) = char::from_u32(first) {
        return Some((letter, 5));
    }
    let second = text.get(5..)?.strip_prefix('\\').and_then(unit)?;
    if !(0xd800..0xdc00).contains(&first) || !(0xdc00..0xe000).contains(&second) {
        return None;
    }
    let letter = char::from_u32(0x10000 + ((first - 0xd800) << 10) + (second - 0xdc00))?;
    Some((letter, 11))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn kinds(text: &str) -> Vec<&'static str> {
        let found = in_json(text.as_bytes());
        found.iter().map(|kind| kind.as_str()).collect()
    }

    #[test]
    fn what_hides_text_is_named_written_plainly_or_escaped() {
        for (text, expected) in [
            ("\"a\u{202e}b\"", &["bidirectional"][..]),
            (r#""a\u202Eb""#, &["bidirectional"]),
            ("\"a\u{e0041}\u{e0042}\"", &["tag"]),
            (r#""a\udb40\udc41""#, &["tag"]),
            (r#""\ud800\udb40\udc41""#, &["tag"]),
            (r#""\u001b[2J""#, &["control"]),
            (r#""a\bb""#, &["control"]),
            (r#""\u200b""#, &["hidden"]),
            (
                "\"\u{feff}\u{2067}\u{7f}\"",
                &["control", "bidirectional", "hidden"],
            ),
        ] {
            assert_eq!(kinds(text), expected, "{text:?}");
        }
    }

    #[test]
    fn what_people_write_is_not() {
        for text in [
            "\"plain\"",
            r#""line\n\ttab \\u202e \" \/ \u00e9""#,
            "\"שלום مرحبا 漢字\"",
            "\"👩\u{200d}💻 ❤\u{fe0f} می\u{200c}خواهم\"",
            r#""\ud83d\udc69 \ud800 \u12""#,
            "{\n  \"pretty\": true\r\n}",
            "\"ends in \\",
            "\\u123é",
        ] {
            assert_eq!(kinds(text), [""; 0], "{text:?}");
        }
    }
}
