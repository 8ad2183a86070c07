//! What a server is asked for beside its tools.

use std::sync::Arc;

use super::tap::push_member;
use crate::model::json::RawJson;

/// What a server lists page by page.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ListKind {
    Tools,
    Resources,
    ResourceTemplates,
    Prompts,
}

impl ListKind {
    pub fn method(self) -> &'static str {
        match self {
            Self::Tools => "tools/list",
            Self::Resources => "resources/list",
            Self::ResourceTemplates => "resources/templates/list",
            Self::Prompts => "prompts/list",
        }
    }

    /// The member of the server's result that has the items.
    pub fn member(self) -> &'static str {
        match self {
            Self::Tools => "tools",
            Self::Resources => "resources",
            Self::ResourceTemplates => "resourceTemplates",
            Self::Prompts => "prompts",
        }
    }

    /// The items, in a sentence.
    pub fn noun(self) -> &'static str {
        match self {
            Self::ResourceTemplates => "resource templates",
            other => other.member(),
        }
    }

    /// What a server that has such a list declares.
    pub fn capability(self) -> &'static str {
        match self {
            Self::Tools => "tools",
            Self::Resources | Self::ResourceTemplates => "resources",
            Self::Prompts => "prompts",
        }
    }
}

/// One request that the server answers with one result. JSON values are passed on untouched.
#[derive(Clone, Debug, PartialEq)]
pub enum Ask {
    ReadResource {
        uri: Arc<str>,
    },
    GetPrompt {
        name: Arc<str>,
        arguments: RawJson,
    },
    Complete {
        /// The prompt or the resource template, a `ref` object.
        reference: RawJson,
        argument: RawJson,
        context: Option<RawJson>,
    },
}

impl Ask {
    pub fn method(&self) -> &'static str {
        match self {
            Self::ReadResource { .. } => "resources/read",
            Self::GetPrompt { .. } => "prompts/get",
            Self::Complete { .. } => "completion/complete",
        }
    }

    pub fn capability(&self) -> &'static str {
        match self {
            Self::ReadResource { .. } => "resources",
            Self::GetPrompt { .. } => "prompts",
            Self::Complete { .. } => "completions",
        }
    }

    /// What `Mcp-Name` mirrors.
    pub(super) fn name(&self) -> Option<&str> {
        match self {
            Self::ReadResource { uri } => Some(uri),
            Self::GetPrompt { name, .. } => Some(name),
            Self::Complete { .. } => None,
        }
    }

    /// About how long the rendered members are.
    pub(super) fn length(&self) -> usize {
        match self {
            Self::ReadResource { uri } => uri.len(),
            Self::GetPrompt { name, arguments } => name.len() + arguments.bytes().len(),
            Self::Complete {
                reference,
                argument,
                context,
            } => {
                let context = context.as_ref().map_or(0, |context| context.bytes().len());
                reference.bytes().len() + argument.bytes().len() + context
            }
        }
    }

    /// The members of `params`, each after a comma.
    pub(super) fn render(&self, line: &mut Vec<u8>) {
        match self {
            Self::ReadResource { uri } => push_member(line, "uri", &**uri),
            Self::GetPrompt { name, arguments } => {
                push_member(line, "name", &**name);
                push_raw(line, "arguments", arguments);
            }
            Self::Complete {
                reference,
                argument,
                context,
            } => {
                push_raw(line, "ref", reference);
                push_raw(line, "argument", argument);
                if let Some(context) = context {
                    push_raw(line, "context", context);
                }
            }
        }
    }
}

fn push_raw(line: &mut Vec<u8>, name: &str, value: &RawJson) {
    line.extend_from_slice(format!(",\"{name}\":").as_bytes());
    line.extend_from_slice(value.bytes());
}
