//! Approvals as the API sees them: the requests of operators that wait for the word of others, and what has to wait.

use super::backend::Controlled;
use base64::Engine as _;
use base64::prelude::BASE64_STANDARD;
use weir_api::types::{ApprovalList, ApprovalResponse, NeedOf, WaitingView};
use weir_api::{ApiError, Caller};
use weir_base::codec::encode;
use weir_controller::core::approvals::{Waiting, all_waiting, needs, waiting};
use weir_controller::driver::Published;
use weir_model::approval::{Approval, Need, Needs};
use weir_model::event::{EventBody, Said, SourceId};
use weir_model::join::to_hex;
use weir_model::operator::OperatorRole;

/// How many digits of a request's id a person is told.
const SHOWN_DIGITS: usize = 16;

/// Of whom a request that waits needs the word, and who has said so.
fn state(known: &Published, (waiting, said): &(Waiting, Said)) -> (Need, Vec<SourceId>) {
    let alone = Need { approvals: 1, role: OperatorRole::Operator };
    let need = needs(&known.store).of(said.body()).unwrap_or(alone);
    (need, waiting.counted(&known.operators, need))
}

fn names(sources: &[SourceId]) -> Vec<String> {
    sources.iter().map(|source| source.short().to_owned()).collect()
}

fn role_words(role: OperatorRole) -> &'static str {
    match role {
        OperatorRole::Operator => "operators",
        OperatorRole::Admin => "admins",
    }
}

impl Controlled {
    /// That a request is ordered and waits, for who asked.
    pub(super) fn told_to_wait(&self, digest: &[u8; 32], waits: &(Waiting, Said)) -> ApiError {
        let (need, given) = state(&self.handle.published(), waits);
        let (waiting, said) = waits;
        let id = to_hex(digest);
        let hours = waiting.until_ms.saturating_sub(waiting.since_ms) / 3_600_000;
        let time = if hours > 0 {
            format!("{hours} h")
        } else {
            format!("{} s", waiting.until_ms.saturating_sub(waiting.since_ms) / 1_000)
        };
        ApiError::waits(format!(
            "{} waits for approval: it needs the word of {} {}, and has that of {}; others give theirs within {time} with \
             'weir approvals approve {}'",
            weir_api::asked::in_words(said.body()),
            need.approvals,
            role_words(need.role),
            if given.is_empty() { "none".to_owned() } else { names(&given).join(", ") },
            &id[..SHOWN_DIGITS]
        ))
    }

    pub(super) async fn list_approvals(&self) -> Result<ApprovalList, ApiError> {
        self.barrier().await?;
        let known = self.handle.published();
        let Needs { kinds, wait_s } = needs(&known.store);
        let mut items: Vec<WaitingView> = all_waiting(&known.store, self.handle.time().wall_ms())
            .filter_map(|(digest, _)| Some((digest, waiting(&known.store, &digest)?)))
            .map(|(digest, waits)| {
                let (need, given) = state(&known, &waits);
                let (waiting, said) = waits;
                WaitingView {
                    id: to_hex(&digest),
                    said: BASE64_STANDARD.encode(encode(&said)),
                    version: waiting.version.0,
                    since_ms: waiting.since_ms,
                    until_ms: waiting.until_ms,
                    needed: need.approvals,
                    role: need.role,
                    given: names(&given),
                }
            })
            .collect();
        items.sort_by_key(|item| item.version);
        let needs =
            kinds.into_iter().map(|(kind, Need { approvals, role })| NeedOf { kind, approvals, role });
        Ok(ApprovalList { needs: needs.collect(), wait_s, items })
    }

    fn signs(&self) -> Result<(), ApiError> {
        match self.is_signing() {
            true => Ok(()),
            false => Err(ApiError::conflict(
                "approvals are for domains whose operators sign what they order: 'weir operator list' says more",
            )),
        }
    }

    pub(super) async fn say_of_waiting(
        &self,
        caller: &Caller,
        id: [u8; 32],
        approve: bool,
    ) -> Result<ApprovalResponse, ApiError> {
        self.signs()?;
        self.barrier().await?;
        if self.handle.waits(&id).is_none() {
            return Err(ApiError::not_found(format!(
                "no request {} waits: it is done, refused or over; 'weir approvals list' shows what waits",
                to_hex(&id)
            )));
        }
        let said = if approve { Approval::Given(id) } else { Approval::Refused(id) };
        let version = self.say(caller, EventBody::Approval(Box::new(said))).await?;
        let (given, needed) = self.handle.waits(&id).map_or((0, 0), |waits| {
            let (need, given) = state(&self.handle.published(), &waits);
            (u8::try_from(given.len()).unwrap_or(u8::MAX), need.approvals)
        });
        Ok(ApprovalResponse { version: version.0, done: approve && needed == 0, given, needed })
    }

    pub(super) async fn change_needs(&self, caller: &Caller, needs: Needs) -> Result<(), ApiError> {
        self.signs()?;
        self.barrier().await?;
        self.say(caller, EventBody::Approval(Box::new(Approval::Needed(needs)))).await.map(drop)
    }
}
