//! The app that controllers run: all deciders, on one engine.

use crate::delta::{self, Desk};
use crate::fabric::{Fabric, FabricSettings};
use crate::orders::Orders;
use weir_model::Version;
use weir_model::event::Event;
use weir_store::{App, Decision, Rejection, TableName, View};

/// The app: see [`crate::delta`] for how it decides, [`crate::fabric`] and [`crate::orders`] for what.
#[derive(Clone, Debug, Default)]
pub struct Deciders {
    settings: FabricSettings,
}

impl Deciders {
    /// With these settings.
    pub fn new(settings: FabricSettings) -> Deciders {
        Deciders { settings }
    }

    /// Its settings.
    pub fn settings(&self) -> &FabricSettings {
        &self.settings
    }
}

impl App for Deciders {
    fn name(&self) -> &'static str {
        "deciders"
    }

    fn decide(
        &self,
        view: &mut View<'_>,
        version: Version,
        now_ms: u64,
        event: &Event,
    ) -> Result<Decision, Rejection> {
        let mut fabric = Fabric::new(&self.settings);
        let mut desk = Desk::new(view, version, self.settings.bounds());
        // Resources before orders: an event that changes both is rejected for what is wrong with the former first.
        let plan = delta::decide(&mut desk, &mut [&mut fabric, &mut Orders], event, now_ms)?;
        Ok(Decision { plan })
    }
}

/// Every table that events change.
pub fn tables() -> impl Iterator<Item = TableName> {
    let all = [&delta::tables::ALL[..], &crate::fabric::tables::ALL, &crate::orders::tables::ALL];
    all.into_iter().flatten().copied()
}
