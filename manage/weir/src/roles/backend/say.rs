//! The one place where what a caller asks becomes ordered (row R1).
//!
//! Where the domain's operators sign what they ask, a controller's word for it counts for nothing: the event goes into the order as the
//! caller's request ([`Said`]), which every controller checks when it decides. Here it is only looked whether it would be taken, so that
//! the caller hears what to sign, or what is wrong, before something takes a place in the order.
//!
//! A call orders one such event at most: its signature is over one.

use super::Controlled;
use weir_api::asked::in_words;
use weir_api::said::{Signed, Statement, Word};
use weir_api::{ApiError, Caller};
use weir_controller::Error;
use weir_controller::core::admission::Unauthentic;
use weir_model::Version;
use weir_model::event::{Event, EventBody, Said, SourceId};

/// What helps who has not signed.
const CURE: &str = "take a context with an operator's key ('operator' in admin.json), or name the file that 'weir operator key' wrote \
                    (--operator or WEIR_OPERATOR); programs: the header Weir-Signature in /v1/openapi.json";

impl Controlled {
    /// Orders what a caller asks; gives the version at which it was decided.
    ///
    /// # Errors
    /// [`ApiError`]: also what is to be signed, that it must be, and that it is ordered and waits for the approval of others.
    pub(in crate::roles) async fn say(&self, caller: &Caller, body: EventBody) -> Result<Version, ApiError> {
        if !self.is_signed(&body) {
            let ordered = self.handle.submit_own(body, Some(caller.subject.clone())).await;
            return ordered.map_err(|error| self.failed(error));
        }
        let said = self.signed(caller, body)?;
        match self.handle.submit_said(said.clone()).await {
            Ok(version) => {
                let digest = self.handle.digest_of(&said);
                match self.handle.waits(&digest) {
                    Some(waits) => Err(self.told_to_wait(&digest, &waits)),
                    None => Ok(version),
                }
            }
            Err(Error::Unauthentic { reason, .. }) => Err(self.not_taken(reason, &said)),
            Err(error) => Err(self.failed(error)),
        }
    }

    /// Whether operators sign what they order here; also before the order has heard who they are.
    pub(in crate::roles) fn is_signing(&self) -> bool {
        self.handle.published().operators.in_force() || self.handle.awaits_operators()
    }

    /// Whether an operator must sign this here.
    pub(super) fn is_signed(&self, body: &EventBody) -> bool {
        self.handle.must_be_signed(body)
    }

    /// Says already now what would be said of the signature of what a call orders in its end.
    ///
    /// # Errors
    /// As [`Controlled::say`].
    pub(super) fn foresee(&self, caller: &Caller, body: &EventBody) -> Result<(), ApiError> {
        if !self.is_signed(body) {
            return Ok(());
        }
        let said = self.signed(caller, body.clone())?;
        self.handle.check_said(&said).map(drop).map_err(|reason| self.not_taken(reason, &said))
    }

    /// The caller's request, with the signature that it came with.
    fn signed(&self, caller: &Caller, body: EventBody) -> Result<Said, ApiError> {
        if !self.handle.published().operators.in_force() {
            return Err(ApiError::unready(
                "the operators of the settings are not in force yet: ask again in a moment. In a group more of its controllers than may lie \
                 must have the same 'operators' in their settings",
            ));
        }
        match &caller.word {
            Word::None => {
                let what = in_words(&body);
                Err(ApiError::unsigned(format!("{what}: an operator of this domain must sign it: {CURE}")))
            }
            Word::Prepare { operator } => {
                let author = SourceId::of_operator(operator);
                match self.handle.published().operators.row(&author) {
                    None => Err(refused(Unauthentic::NoOperator, &author, &body)),
                    Some(row) if !row.role.may_order(&body) => {
                        Err(refused(Unauthentic::BeyondRole, &author, &body))
                    }
                    Some(_) => Err(ApiError::to_sign(self.statement(author, &body))),
                }
            }
            Word::Signed(signed) => {
                let Signed { operator, number, made_ms, until_ms, signature } = &**signed;
                let event = Event { source: SourceId::of_operator(operator), sequence: *number, body };
                Ok(Said { event, made_ms: *made_ms, until_ms: *until_ms, signature: *signature })
            }
        }
    }

    fn statement(&self, author: SourceId, body: &EventBody) -> Statement {
        Statement::new(self.handle.domain(), author.0, self.handle.time().wall_ms(), body)
    }

    /// Why a request is not taken, and what to sign where that is what is wrong.
    fn not_taken(&self, reason: Unauthentic, said: &Said) -> ApiError {
        match reason {
            // The tables have changed since it was signed, or another program of the author was quicker.
            Unauthentic::Forged | Unauthentic::NumberUsed => {
                ApiError::sign_again(reason, self.statement(said.author().clone(), said.body()))
            }
            reason => refused(reason, said.author(), said.body()),
        }
    }
}

fn refused(reason: Unauthentic, author: &SourceId, body: &EventBody) -> ApiError {
    ApiError::forbidden(format!("{} of {}: {reason}", in_words(body), author.0))
}
