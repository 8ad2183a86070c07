//! Whole lists, page by page, raw and bounded.

use serde::Deserialize;
use serde_json::Value;
use serde_json::value::RawValue;
use tokio::time::Instant;

use super::{Session, is_unknown_method};
use crate::mcp::tap::Request;
use crate::mcp::{ListKind, Listed};
use crate::model::deadline::Deadline;
use crate::model::error::{ErrorCode, Failure, Phase};
use crate::model::json::RawJson;

/// Bounds of one walk of a list.
const MAX_PAGES: usize = 100;
const MAX_ITEMS: usize = 5_000;

impl Session {
    /// A whole list, page by page, raw and bounded.
    ///
    /// # Errors
    /// `unsupported` where the server has no such list (no tools: an empty one), and as
    /// [`Session::call_tool`].
    pub async fn list(&self, kind: ListKind, deadline: Instant) -> Result<Listed, Failure> {
        let deadline = Deadline {
            started: Instant::now(),
            at: deadline,
            extension: None,
        };
        if kind != ListKind::Tools && !self.declares(kind.capability()) {
            return Err(self.placed(self.lacks(kind.capability()), deadline, Phase::List));
        }
        let mut listed = Listed::default();
        let mut cursors: Vec<String> = Vec::new();
        for _ in 0..MAX_PAGES {
            let page = match self
                .page(kind, cursors.last().map(String::as_str), deadline)
                .await
            {
                Err(failure) if cursors.is_empty() && is_unknown_method(&failure) => match kind {
                    ListKind::Tools if !self.declares("tools") => break,
                    ListKind::Tools => return Err(failure),
                    _ => {
                        let lacking = self.lacks(kind.capability());
                        return Err(self.placed(lacking, deadline, Phase::List));
                    }
                },
                page => page?,
            };
            let next = take_page(&page, kind, &mut listed).map_err(|reason| {
                let name = &self.server_name;
                let text = format!(
                    "server `{name}` sent a list of {} that cannot be read: {reason}",
                    kind.noun()
                );
                self.placed(
                    Failure::new(ErrorCode::ProtocolError, text),
                    deadline,
                    Phase::List,
                )
            })?;
            match next {
                None => return Ok(listed),
                Some(_) if listed.items.len() >= MAX_ITEMS => {
                    listed.warnings.push(format!(
                        "only the first {MAX_ITEMS} {} were read",
                        kind.noun()
                    ));
                    return Ok(listed);
                }
                Some(cursor) if cursors.contains(&cursor) => {
                    listed
                        .warnings
                        .push("the server repeats a cursor; the list ends there".into());
                    return Ok(listed);
                }
                Some(cursor) => cursors.push(cursor),
            }
        }
        if cursors.len() == MAX_PAGES {
            listed
                .warnings
                .push(format!("only the first {MAX_PAGES} pages were read"));
        }
        Ok(listed)
    }

    async fn page(
        &self,
        kind: ListKind,
        cursor: Option<&str>,
        deadline: Deadline,
    ) -> Result<RawJson, Failure> {
        let cursor = cursor.map(str::to_owned);
        let request = Request::List { kind, cursor };
        self.request(request, None, deadline, Phase::List).await
    }
}

/// Reads one page; returns the next cursor. A cursor that is no string ends the list.
fn take_page(
    page: &RawJson,
    kind: ListKind,
    listed: &mut Listed,
) -> Result<Option<String>, String> {
    #[derive(Deserialize)]
    struct Page<'a> {
        #[serde(borrow)]
        tools: Option<Vec<&'a RawValue>>,
        #[serde(borrow)]
        resources: Option<Vec<&'a RawValue>>,
        #[serde(borrow, rename = "resourceTemplates")]
        templates: Option<Vec<&'a RawValue>>,
        #[serde(borrow)]
        prompts: Option<Vec<&'a RawValue>>,
        #[serde(rename = "nextCursor")]
        next_cursor: Option<Value>,
    }
    let read: Page = page.read().map_err(|error| error.to_string())?;
    let items = match kind {
        ListKind::Tools => read.tools,
        ListKind::Resources => read.resources,
        ListKind::ResourceTemplates => read.templates,
        ListKind::Prompts => read.prompts,
    };
    let items = items.ok_or_else(|| format!("it has no `{}`", kind.member()))?;
    let items = items.into_iter();
    listed
        .items
        .extend(items.map(|item| RawJson::part_of(page.bytes(), item)));
    match read.next_cursor {
        None => Ok(None),
        Some(Value::String(cursor)) => Ok(Some(cursor)),
        Some(_) => {
            listed
                .warnings
                .push("the server sent a cursor that is no string; the list ends there".into());
            Ok(None)
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The tools as text, the next cursor, and how many warnings there were.
    fn taken(page: &str) -> Result<(Vec<String>, Option<String>, usize), String> {
        let page = RawJson::parse(page.to_owned().into()).expect(page);
        let mut listed = Listed::default();
        let next = take_page(&page, ListKind::Tools, &mut listed)?;
        let tools = listed.items.iter().map(|tool| format!("{tool:?}"));
        Ok((tools.collect(), next, listed.warnings.len()))
    }

    #[test]
    fn tools_of_a_page_are_kept_as_they_came() {
        let odd = r#"{"x":1e2,"name":"a","x":"\ud800"}"#;
        let page = format!(r#"{{"ttlMs":0,"tools":[{odd},null,7],"nextCursor":"c"}}"#);
        let tools = vec![odd.to_owned(), "null".into(), "7".into()];
        assert_eq!(taken(&page), Ok((tools, Some("c".into()), 0)));
    }

    #[test]
    fn only_an_absent_cursor_ends_a_list_quietly() {
        for (cursor, next, warnings) in [
            ("", None, 0),
            (r#","nextCursor":null"#, None, 0),
            (r#","nextCursor":"""#, Some(""), 0),
            (r#","nextCursor":"\u0000 /é""#, Some("\0 /é"), 0),
            (r#","nextCursor":7"#, None, 1),
            (r#","nextCursor":{}"#, None, 1),
            (r#","nextCursor":false"#, None, 1),
        ] {
            let read = taken(&format!(r#"{{"tools":[]{cursor}}}"#));
            let expected = (Vec::new(), next.map(str::to_owned), warnings);
            assert_eq!(read, Ok(expected), "{cursor}");
        }
    }

    #[test]
    fn a_page_without_a_list_of_tools_is_refused() {
        for page in [
            "{}",
            "[]",
            "null",
            r#"{"tools":null}"#,
            r#"{"tools":{}}"#,
            r#"{"tools":"x"}"#,
        ] {
            assert!(taken(page).is_err(), "{page}");
        }
    }
}
