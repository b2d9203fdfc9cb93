//! Operators as the API sees them: the people whose signed requests are taken, and how they change.

use super::backend::Controlled;
use std::collections::BTreeMap;
use weir_api::types::{OperatorList, OperatorRequest, OperatorView};
use weir_api::{ApiError, Caller};
use weir_model::Label;
use weir_model::event::{EventBody, SourceId};
use weir_model::identity::IdentityEvent;
use weir_model::join::to_hex;
use weir_model::operator::{OperatorChange, OperatorFacts};

impl Controlled {
    pub(super) async fn list_operators(&self) -> Result<OperatorList, ApiError> {
        self.barrier().await?;
        let known = self.handle.published().operators.clone();
        let items = known.rows().map(|(source, facts)| OperatorView {
            name: source.short().to_owned(),
            role: facts.role,
            keys: facts.keys.iter().map(|key| to_hex(key)).collect(),
        });
        Ok(OperatorList { signed: known.in_force(), items: items.collect() })
    }

    async fn about_operator(
        &self,
        caller: &Caller,
        whose: SourceId,
        change: OperatorChange,
    ) -> Result<(), ApiError> {
        let about = IdentityEvent::Operator { whose, change };
        self.say(caller, EventBody::Identity(Box::new(about))).await.map(drop)
    }

    pub(super) async fn change_operator(
        &self,
        caller: &Caller,
        name: &Label,
        request: &OperatorRequest,
    ) -> Result<(), ApiError> {
        let facts = request.facts()?;
        self.barrier().await?;
        let whose = SourceId::of_operator(name);
        let operators = self.handle.published().operators.clone();
        if !operators.in_force() {
            return self.begin_with(caller, name, facts).await;
        }
        let known = operators.row(&whose).is_some();
        let change = if known { OperatorChange::Changed(facts) } else { OperatorChange::Added(facts) };
        self.about_operator(caller, whose, change).await
    }

    /// The first operator, by the word of a controller; where none is believed, by the settings of more of them than may lie.
    async fn begin_with(&self, caller: &Caller, name: &Label, facts: OperatorFacts) -> Result<(), ApiError> {
        if self.handle.orders_everywhere() {
            return Err(ApiError::conflict(
                "no controller of this group is believed who the first operator is: put it into the settings of each ('operators', the line \
                 that 'weir operator key' prints), and start them again",
            ));
        }
        if self.handle.awaits_operators() {
            return Err(ApiError::unready(
                "the operators of the settings are not in force yet: ask again in a moment",
            ));
        }
        let founders = BTreeMap::from([(name.clone(), facts)]);
        let ordered = self.handle.first_operators(&founders, Some(caller.subject.clone())).await;
        ordered.map(drop).map_err(|error| self.failed(error))
    }

    pub(super) async fn end_operator(&self, caller: &Caller, name: &Label) -> Result<(), ApiError> {
        self.barrier().await?;
        let whose = SourceId::of_operator(name);
        if self.handle.published().operators.row(&whose).is_none() {
            return Err(ApiError::not_found(format!(
                "no operator is named '{name}': 'weir operator list' shows them"
            )));
        }
        self.about_operator(caller, whose, OperatorChange::Removed).await
    }
}
