//! Whether a command line fetches whatever version is newest: such a server can change, or break,
//! from one start to the next without anybody having changed anything.

/// The package that `command` fetches in no particular version.
pub fn floating<'a>(command: &str, args: &[&'a str]) -> Option<&'a str> {
    let program = command.rsplit('/').next().unwrap_or(command);
    let (package, is_pinned) = match (program, args) {
        ("npx", args) => (npx_package(args)?, is_npm_pinned as fn(&str) -> bool),
        ("uvx", args) | ("uv", ["tool", "run", args @ ..]) => {
            (uvx_package(args)?, is_python_pinned as fn(&str) -> bool)
        }
        _ => return None,
    };
    let is_elsewhere = package.contains("://") || package.starts_with(['.', '/', '$']);
    (!is_elsewhere && !is_pinned(package)).then_some(package)
}

fn npx_package<'a>(args: &[&'a str]) -> Option<&'a str> {
    option(args, &["-p", "--package"]).or_else(|| first_word(args, &["-p", "--package", "-w"]))
}

fn uvx_package<'a>(args: &[&'a str]) -> Option<&'a str> {
    const WITH_VALUE: &[&str] = &[
        "--with",
        "--python",
        "-p",
        "--index",
        "--index-url",
        "-i",
        "--extra-index-url",
        "--default-index",
        "--refresh-package",
    ];
    option(args, &["--from"]).or_else(|| first_word(args, WITH_VALUE))
}

/// The value of the first of these options.
fn option<'a>(args: &[&'a str], names: &[&str]) -> Option<&'a str> {
    args.iter().enumerate().find_map(|(position, word)| {
        if names.contains(word) {
            return args.get(position + 1).copied();
        }
        let (name, value) = word.split_once('=')?;
        names.contains(&name).then_some(value)
    })
}

/// The first word that is neither an option nor the value of one.
fn first_word<'a>(args: &[&'a str], with_value: &[&str]) -> Option<&'a str> {
    let mut words = args.iter();
    while let Some(word) = words.next() {
        if with_value.contains(word) {
            words.next();
        } else if !word.starts_with('-') {
            return Some(word);
        }
    }
    None
}

/// `name@1.2.3`; a tag or a range is none.
fn is_npm_pinned(package: &str) -> bool {
    let version = package.get(1..).and_then(|rest| rest.rsplit_once('@'));
    version.is_some_and(|(_, version)| is_exact(version) && version.matches('.').count() >= 2)
}

/// `name==1.2.3` or `name@1.2.3`.
fn is_python_pinned(package: &str) -> bool {
    let exactly = package.split_once("==").or(package.split_once('@'));
    exactly.is_some_and(|(_, version)| is_exact(version.trim_start_matches('=').trim()))
}

fn is_exact(version: &str) -> bool {
    let is_any = |part: &str| ["*", "x", "X"].contains(&part);
    version.starts_with(|first: char| first.is_ascii_digit())
        && !version.contains([' ', '|', ','])
        && !version.split('.').any(is_any)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_names_no_version_is_floating() {
        let floating = |line: &'static str| {
            let words: Vec<_> = line.split(' ').collect();
            floating(words[0], &words[1..])
        };
        for (line, package) in [
            ("npx -y books", "books"),
            ("/usr/bin/npx @scope/books --flag", "@scope/books"),
            ("npx -y books@latest", "books@latest"),
            ("npx -y books@^1.2.0", "books@^1.2.0"),
            ("npx -y books@1.2", "books@1.2"),
            ("npx --package=books serve", "books"),
            ("npx -p @scope/books@2 serve", "@scope/books@2"),
            ("uvx books", "books"),
            ("uvx --python 3.12 books", "books"),
            ("uvx --from books serve", "books"),
            ("uv tool run books@latest", "books@latest"),
            ("uvx books==1.*", "books==1.*"),
        ] {
            assert_eq!(floating(line), Some(package), "{line}");
        }
    }

    #[test]
    fn what_is_pinned_or_fetches_nothing_by_version_is_not() {
        for line in [
            "npx -y books@1.2.3",
            "npx -y @scope/books@1.2.3-next.1 --port 1",
            "npx --package=books@1.2.3 serve",
            "npx ./books",
            "npx -y",
            "uvx books==1.2.3",
            "uvx books@1.2.3",
            "uvx --from books==1.2.3 serve",
            "uvx --from git+https://example.org/books serve",
            "uv run books",
            "node books.js",
        ] {
            let words: Vec<_> = line.split(' ').collect();
            assert_eq!(floating(words[0], &words[1..]), None, "{line}");
        }
    }
}
