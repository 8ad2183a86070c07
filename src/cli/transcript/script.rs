//! The text of a transcript: read, and written again with other expectations.

use serde_json::Value;

/// Lines this long are written over several.
const WIDTH: usize = 100;

/// One step, with the number of its first line.
#[derive(Debug, PartialEq)]
pub(super) struct Step {
    pub line: usize,
    pub part: Part,
}

#[derive(Debug, PartialEq)]
pub(super) enum Part {
    /// A comment or an empty line.
    Text(String),
    Setup(Setup),
    Exchange(Exchange),
}

/// `$ ARGUMENTS`: one of our own subcommands, run to its end.
#[derive(Debug, Default, PartialEq)]
pub(super) struct Setup {
    pub arguments: String,
    /// The `|` lines.
    pub stdin: String,
    /// The `?` line: the exit code expected.
    pub status: i32,
}

/// Command lines sent together, and the answers expected to them, in any order.
#[derive(Debug, Default, PartialEq)]
pub(super) struct Exchange {
    /// As written: a command over several lines has them joined.
    pub commands: Vec<String>,
    pub expected: Vec<Value>,
}

/// Reads a whole transcript.
///
/// # Errors
/// A sentence that names the line.
pub(super) fn parse(text: &str) -> Result<Vec<Step>, String> {
    let mut steps: Vec<Step> = Vec::new();
    for (line, joined) in join_continued(text) {
        let (sign, rest) = joined.split_at(joined.chars().next().map_or(0, char::len_utf8));
        let rest = rest.strip_prefix(' ').unwrap_or(rest);
        let last = steps.last_mut().map(|step| &mut step.part);
        let part = match (sign, last) {
            ("" | "#", _) => Part::Text(joined),
            ("$", _) => Part::Setup(Setup {
                arguments: rest.to_owned(),
                ..Setup::default()
            }),
            ("|", Some(Part::Setup(setup))) => {
                setup.stdin.push_str(rest);
                setup.stdin.push('\n');
                continue;
            }
            ("?", Some(Part::Setup(setup))) => {
                let status = rest.trim().parse();
                setup.status =
                    status.map_err(|_| format!("line {line}: an exit code is expected"))?;
                continue;
            }
            (">", Some(Part::Exchange(exchange))) if exchange.expected.is_empty() => {
                exchange.commands.push(rest.to_owned());
                continue;
            }
            (">", _) => Part::Exchange(Exchange {
                commands: vec![rest.to_owned()],
                expected: Vec::new(),
            }),
            ("<", Some(Part::Exchange(exchange))) => {
                let expected = serde_json::from_str(rest);
                let expected = expected.map_err(|error| format!("line {line}: {error}"))?;
                exchange.expected.push(expected);
                continue;
            }
            ("<", _) => {
                return Err(format!(
                    "line {line}: an answer without a command before it"
                ));
            }
            ("|" | "?", _) => {
                return Err(format!("line {line}: `{sign}` belongs below a `$` line"));
            }
            _ => return Err(format!("line {line}: it begins with none of `#$|?><`")),
        };
        steps.push(Step { line, part });
    }
    Ok(steps)
}

/// Logical lines with the number of their first: an indented line continues the one before.
fn join_continued(text: &str) -> Vec<(usize, String)> {
    let mut joined: Vec<(usize, String)> = Vec::new();
    for (position, line) in text.lines().enumerate() {
        let continued = line.starts_with([' ', '\t']) && !line.trim().is_empty();
        match joined.last_mut() {
            Some((_, before)) if continued => {
                before.push(' ');
                before.push_str(line.trim());
            }
            _ => joined.push((position + 1, line.trim_end().to_owned())),
        }
    }
    joined
}

/// The text of a transcript.
pub(super) fn write(steps: &[Step]) -> String {
    let mut lines = Vec::new();
    for step in steps {
        match &step.part {
            Part::Text(text) => lines.push(text.clone()),
            Part::Setup(setup) => {
                lines.push(format!("$ {}", setup.arguments));
                lines.extend(setup.stdin.lines().map(|line| format!("| {line}")));
                if setup.status != 0 {
                    lines.push(format!("? {}", setup.status));
                }
            }
            Part::Exchange(exchange) => {
                lines.extend(
                    exchange
                        .commands
                        .iter()
                        .map(|command| format!("> {command}")),
                );
                lines.extend(exchange.expected.iter().map(write_expected));
            }
        }
    }
    lines.push(String::new());
    lines.join("\n")
}

fn write_expected(expected: &Value) -> String {
    format!("< {}", laid_out(expected))
}

/// A value on one line where it fits, else its members on lines of their own.
pub(super) fn laid_out(value: &Value) -> String {
    let mut text = String::new();
    lay_out(&mut text, value, 2, 0);
    text
}

/// `taken`: the columns before and after the value on its first line.
fn lay_out(text: &mut String, value: &Value, indent: usize, taken: usize) {
    let short = value.to_string();
    let members: Vec<(String, &Value)> = match value {
        Value::Object(members) => {
            let named =
                |(name, value)| (format!("{}: ", Value::String(String::clone(name))), value);
            members.iter().map(named).collect()
        }
        Value::Array(elements) => elements.iter().map(|it| (String::new(), it)).collect(),
        _ => Vec::new(),
    };
    if members.is_empty() || indent + taken + short.len() <= WIDTH {
        text.push_str(&short);
        return;
    }
    let (open, close) = if value.is_object() {
        ("{", "}")
    } else {
        ("[", "]")
    };
    text.push_str(open);
    for (position, (name, member)) in members.iter().enumerate() {
        let comma = if position == 0 { "" } else { "," };
        text.push_str(&format!("{comma}\n{:1$}{name}", "", indent + 2));
        lay_out(text, member, indent + 2, name.len() + 1);
    }
    text.push_str(&format!("\n{:1$}{close}", "", indent));
}

/// The words of a `$` line; quotes keep blanks together.
pub(super) fn words(line: &str) -> Result<Vec<String>, String> {
    let mut words = Vec::new();
    let mut word: Option<String> = None;
    let mut quote = None;
    for letter in line.chars() {
        match (letter, quote) {
            (letter, Some(open)) if letter == open => quote = None,
            ('\'' | '"', None) => {
                quote = Some(letter);
                word.get_or_insert_default();
            }
            (' ' | '\t', None) => words.extend(word.take()),
            (letter, _) => word.get_or_insert_default().push(letter),
        }
    }
    if quote.is_some() {
        return Err("a quote is not closed".to_owned());
    }
    words.extend(word);
    Ok(words)
}

#[cfg(test)]
mod tests {
    use super::*;

    const TEXT: &str = "# A comment\n\n$ server add x\n| {\"a\":1}\n? 2\n> {\"command\":\"ping\"}\n\
                        > {\"command\":\"ping\"}\n< {\"a\":1}\n< {\"a\":2}\n> {}\n< \"<any>\"\n";

    #[test]
    fn what_is_written_is_what_was_read() {
        let steps = parse(TEXT).unwrap();
        assert_eq!(steps.len(), 5);
        let Part::Exchange(both) = &steps[3].part else {
            panic!("{steps:?}")
        };
        assert_eq!((both.commands.len(), both.expected.len()), (2, 2));
        assert_eq!(steps[3].line, 6);
        assert_eq!(write(&steps), TEXT);
    }

    #[test]
    fn long_answers_go_over_several_lines_and_come_back() {
        let expected = serde_json::json!({"text": "x".repeat(WIDTH), "list": [1]});
        let part = Part::Exchange(Exchange {
            commands: vec!["{}".to_owned()],
            expected: vec![expected],
        });
        let steps = vec![Step { line: 1, part }];
        let text = write(&steps);
        assert_eq!(text.lines().count(), 5, "{text}");
        assert_eq!(parse(&text).unwrap(), steps);
    }

    #[test]
    fn a_fault_names_its_line() {
        for (text, fault) in [
            ("x", "line 1: it begins with none of `#$|?><`"),
            ("# a\n< {}", "line 2: an answer without a command before it"),
            ("| a", "line 1: `|` belongs below a `$` line"),
        ] {
            assert_eq!(parse(text).unwrap_err(), fault);
        }
        assert!(parse("> {}\n< {").unwrap_err().starts_with("line 2: "));
    }

    #[test]
    fn quotes_keep_blanks_together() {
        assert_eq!(words("a 'b c' \"d\"e ''").unwrap(), ["a", "b c", "de", ""]);
        assert!(words("a 'b").is_err());
    }
}
