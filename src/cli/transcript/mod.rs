//! `mcp-client transcript FILE...`: plays scripted conversations with the daemon and compares the
//! answers. See docs/transcripts.md.

mod pattern;
mod player;
mod script;

use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::time::Duration;

use serde_json::Value;
use similar::TextDiff;

use super::oneshot;
use player::{Player, Stage};
use script::{Exchange, Part, Step};

/// Play scripted conversations with the daemon and compare the answers
#[derive(clap::Args, Debug)]
#[command(after_long_help = HELP)]
pub struct Args {
    /// The transcripts
    #[arg(required = true, value_name = "FILE")]
    pub files: Vec<PathBuf>,
    /// Use a data directory of its own, which is removed afterwards
    #[arg(long)]
    pub fresh: bool,
    /// Write the answers into the file as expected ones, keeping the wildcards that still match
    #[arg(long)]
    pub update: bool,
    /// Print the conversation as it goes
    #[arg(long)]
    pub show: bool,
    /// Run the commands of one exchange side by side, as the daemon does without --sequential
    #[arg(long)]
    pub parallel: bool,
    /// Seconds to wait for the answers of one exchange
    #[arg(long, default_value_t = 120, value_name = "SECONDS")]
    pub timeout: u64,
    /// A further argument for the daemon
    #[arg(
        long = "daemon-arg",
        value_name = "ARGUMENT",
        allow_hyphen_values = true
    )]
    pub daemon_args: Vec<String>,
}

const HELP: &str = "\
A transcript is a text of lines:
  # ...   a comment
  $ ...   a subcommand of this program, run to its end ($SELF is its path)
  | ...   a line for the stdin of the `$` line above
  ? N     the exit code the `$` line above must have (0 when left out)
  > ...   a command line for the daemon
  < ...   an answer expected to the commands above, in any order
An indented line continues the one before. In an expected answer:
  \"<any>\" \"<string>\" \"<number>\" \"<boolean>\"   any such value
  \"text <*> text\"                              any text at <*>
  [..., \"<...>\"]                               any further elements
  {..., \"...\": true}                           any further members
Exit codes: 0 everything as expected; 1 a difference; 2 wrong usage.";

/// Plays every file; the exit code is as the help says.
pub fn run(args: Args) -> ExitCode {
    // Every file is played, whatever became of the one before.
    let mut code = ExitCode::SUCCESS;
    for file in &args.files {
        match play_file(file, &args) {
            Ok(commands) => {
                oneshot::print(&format!("ok: {} ({commands} commands)", file.display()));
            }
            Err(report) => {
                eprintln!("{}: {report}", file.display());
                code = ExitCode::from(1);
            }
        }
    }
    code
}

/// Plays one file and gives the number of its commands.
fn play_file(file: &Path, args: &Args) -> Result<usize, String> {
    let text = std::fs::read_to_string(file).map_err(|error| error.to_string())?;
    let mut steps = script::parse(&text)?;
    let fresh = match args.fresh {
        true => Some(tempfile::tempdir().map_err(|error| error.to_string())?),
        false => None,
    };
    let directory = fresh.as_ref().map(tempfile::TempDir::path);
    let stage = Stage::new(directory, Duration::from_secs(args.timeout))
        .map_err(|error| error.to_string())?;
    let differences = play(&mut steps, &stage, args)?;
    if args.update {
        std::fs::write(file, script::write(&steps)).map_err(|error| error.to_string())?;
    } else if !differences.is_empty() {
        return Err(differences.join("\n"));
    }
    let exchanges = steps.iter().map(|step| match &step.part {
        Part::Exchange(exchange) => exchange.commands.len(),
        Part::Text(_) | Part::Setup(_) => 0,
    });
    Ok(exchanges.sum())
}

/// Plays all steps; their expectations become what was answered. Gives the differences.
fn play(steps: &mut [Step], stage: &Stage, args: &Args) -> Result<Vec<String>, String> {
    let mut arguments = vec!["run".to_owned()];
    if !args.parallel {
        arguments.push("--sequential".to_owned());
    }
    arguments.extend(args.daemon_args.iter().cloned());
    let mut player: Option<Player> = None;
    let mut differences = Vec::new();
    for step in steps {
        let line = step.line;
        let fault = |why: String| format!("line {line}: {why}");
        match &mut step.part {
            Part::Text(text) => show(args, text),
            Part::Setup(setup) => {
                show(args, &format!("$ {}", setup.arguments));
                let printed = stage
                    .set_up(setup)
                    .map_err(|why| fault(format!("it {why}")))?;
                if !printed.is_empty() {
                    show(args, &printed);
                }
            }
            Part::Exchange(exchange) => {
                if player.is_none() {
                    let started = stage.start(&arguments);
                    player = Some(started.map_err(|error| fault(error.to_string()))?);
                }
                let Some(running) = player.as_mut() else {
                    continue;
                };
                match play_exchange(running, exchange, stage, args) {
                    Ok(found) => differences.extend(found.into_iter().map(fault)),
                    Err(why) => {
                        let log = player.take().map(Player::abandon).unwrap_or_default();
                        return Err(format!("{}\n{log}", fault(why)));
                    }
                }
            }
        }
    }
    let rest = player.map_or(Ok(Vec::new()), Player::finish)?;
    differences.extend(
        rest.iter()
            .map(|line| format!("at the end: not expected:\n+ {line:#}")),
    );
    Ok(differences)
}

fn play_exchange(
    player: &mut Player,
    exchange: &mut Exchange,
    stage: &Stage,
    args: &Args,
) -> Result<Vec<String>, String> {
    for command in &exchange.commands {
        show(args, &format!("> {command}"));
    }
    let commands: Vec<String> = exchange
        .commands
        .iter()
        .map(|line| stage.expand(line))
        .collect();
    let answers = player.exchange(&commands)?;
    for answer in &answers {
        show(args, &format!("< {}", script::laid_out(answer)));
    }
    let (renewed, differences) = compare(&exchange.expected, answers);
    exchange.expected = renewed;
    Ok(differences)
}

/// The expectations as they should be after these answers, and what differs.
fn compare(expected: &[Value], mut answers: Vec<Value>) -> (Vec<Value>, Vec<String>) {
    let mut pairs: Vec<Option<Value>> = Vec::new();
    for pattern in expected {
        let found = answers
            .iter()
            .position(|answer| pattern::matches(pattern, answer));
        pairs.push(found.map(|position| answers.remove(position)));
    }
    let mut renewed = Vec::new();
    let mut differences = Vec::new();
    for (pattern, met) in expected.iter().zip(pairs) {
        if met.is_some() {
            renewed.push(pattern.clone());
            continue;
        }
        let same_task = |answer: &Value| answer["task_id"] == pattern["task_id"];
        let nearest = answers.iter().position(same_task);
        match nearest.map(|position| answers.remove(position)) {
            Some(answer) => {
                let new = pattern::renew(pattern, &answer);
                differences.push(diff(pattern, &new));
                renewed.push(new);
            }
            None => differences.push(format!("missing:\n- {pattern:#}")),
        }
    }
    for answer in answers {
        differences.push(format!("not expected:\n+ {answer:#}"));
        renewed.push(answer);
    }
    (renewed, differences)
}

fn diff(expected: &Value, answered: &Value) -> String {
    let (expected, answered) = (format!("{expected:#}\n"), format!("{answered:#}\n"));
    let diff = TextDiff::from_lines(&*expected, &*answered);
    let hunks = diff.unified_diff().context_radius(3).to_string();
    format!("expected (-) and answered (+) differ:\n{hunks}")
}

fn show(args: &Args, text: &str) {
    if args.show {
        oneshot::print(text);
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn answers_are_matched_in_any_order() {
        let expected = [json!({"task_id": 1}), json!({"task_id": 2})];
        let answers = vec![json!({"task_id": 2}), json!({"task_id": 1})];
        let (renewed, differences) = compare(&expected, answers);
        assert_eq!(renewed, expected);
        assert!(differences.is_empty(), "{differences:?}");
    }

    #[test]
    fn a_difference_shows_both_sides_of_the_same_task() {
        let expected = [json!({"task_id": 1, "result": "a", "ms": "<number>"})];
        let answers = vec![json!({"task_id": 1, "result": "b", "ms": 7})];
        let (renewed, differences) = compare(&expected, answers);
        assert_eq!(
            renewed,
            [json!({"task_id": 1, "result": "b", "ms": "<number>"})]
        );
        assert_eq!(differences.len(), 1);
        assert!(
            differences[0].contains("-  \"result\": \"a\""),
            "{}",
            differences[0]
        );
        assert!(differences[0].contains("+  \"result\": \"b\""));
        assert!(
            !differences[0].contains("+  \"ms\""),
            "a wildcard that holds is no difference"
        );
    }

    #[test]
    fn missing_and_unexpected_answers_differ() {
        let (renewed, differences) = compare(&[json!({"task_id": 1})], vec![json!({"task_id": 2})]);
        assert_eq!(renewed, [json!({"task_id": 2})]);
        assert!(
            differences[0].starts_with("missing") && differences[1].starts_with("not expected")
        );
    }
}
