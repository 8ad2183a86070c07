//! `call_tool`: at most once, unless the call surely never arrived or may be repeated.

use super::desk::{Actions, Party};
use super::route::Route;
use super::seams::{CallTools, Snapshots};
use super::{CallTool, Context, ResultForm, answer};
use crate::mcp::{Connect, ToolCall};
use crate::model::error::{ErrorCode, Failure, Outcome, Phase};
use crate::model::json::{RawJson, Rope};

impl<C: Connect, D: Snapshots> Actions<C, D>
where
    C::Session: CallTools,
{
    pub(super) async fn call_tool(
        &self,
        call: CallTool,
        context: &Context,
    ) -> Result<Rope, Failure> {
        let view = self.view(context).await?;
        let route = match self.route_at_hand(&view, &call.tool, context) {
            Some(route) => route,
            None => Box::pin(self.route(&view, &call.tool, context))
                .await
                .map_err(not_sent)?,
        };
        let party = Party {
            entry: &route.entry,
            caller: &context.caller,
            deadline: context.deadline,
            trail: &context.trail,
        };
        party.trail.found(&route.entry.definition.name, &route.tool);
        let result = self.call_route(&route, &party, &call, context).await?;
        if answer::is_tool_error(&result) {
            party.trail.tool_failed();
        }
        match call.form {
            ResultForm::Mcp => Ok(result.into()),
            ResultForm::Joined => {
                answer::render(&result).map_err(|failure| party.located(failure, Phase::Call))
            }
        }
    }

    async fn call_route(
        &self,
        route: &Route,
        party: &Party<'_>,
        call: &CallTool,
        context: &Context,
    ) -> Result<RawJson, Failure> {
        self.retries.count_call();
        let failure = match self.attempt(route, party, call, context).await {
            Err(failure) if may_retry(&failure, route.may_repeat) => failure,
            result => return result,
        };
        if !self.retries.grants() {
            tracing::warn!(server = party.name(), tool = &*route.tool, %failure, "not called once more: too many calls fail");
            return Err(failure);
        }
        tracing::info!(server = party.name(), tool = &*route.tool, %failure, "calling once more");
        let second = Box::pin(self.attempt(route, party, call, context)).await;
        if failure.is_not_sent() {
            return second;
        }
        // The first attempt may have run, whatever became of the second.
        second.map_err(|mut again| {
            again.details.remove("outcome");
            unknown_outcome(again)
        })
    }

    async fn attempt(
        &self,
        route: &Route,
        party: &Party<'_>,
        call: &CallTool,
        context: &Context,
    ) -> Result<RawJson, Failure> {
        let ready = self.acquire(party, &route.target).await.map_err(not_sent)?;
        party.trail.reach(Phase::Call);
        let call = ToolCall {
            name: route.tool.clone(),
            arguments: call.arguments.clone(),
            deadline: party.deadline,
            trace: call.trace.clone(),
            events: context.events.clone(),
        };
        let called = ready.session.call_tool(call).await;
        called.map_err(|failure| party.located(with_outcome(failure), Phase::Call))
    }
}

/// A lost connection is worth one more attempt where that cannot run the tool twice by our doubt.
fn may_retry(failure: &Failure, may_repeat: bool) -> bool {
    let called = failure
        .details
        .get("phase")
        .is_some_and(|phase| phase == Phase::Call.as_str());
    let lost = matches!(
        failure.code,
        ErrorCode::ServerCrashed | ErrorCode::SessionLost
    );
    // What the server refused over HTTP it would refuse again.
    let refused = failure.details.contains_key("http_status");
    called && lost && !refused && (failure.is_not_sent() || may_repeat)
}

fn not_sent(failure: Failure) -> Failure {
    failure.outcome(Outcome::NotSent)
}

/// Where the floor below cannot tell whether the tool ran, says so.
fn with_outcome(failure: Failure) -> Failure {
    match failure.code {
        ErrorCode::ServerCrashed
        | ErrorCode::SessionLost
        | ErrorCode::ConnectFailed
        | ErrorCode::ProtocolError
        | ErrorCode::ResultTooLarge
        | ErrorCode::CallTimeout
        | ErrorCode::Cancelled => unknown_outcome(failure),
        _ => failure,
    }
}

fn unknown_outcome(mut failure: Failure) -> Failure {
    if !failure.details.contains_key("outcome") {
        failure.message.push_str("; the tool may have run");
    }
    failure.outcome(Outcome::Unknown)
}
