//! A path: one way for packets to get from a client to a server on another host.

use crate::{Netns, Result, Scope};
use std::net::IpAddr;

/// The two ends that a measurement uses.
#[derive(Debug, Clone)]
pub struct Endpoints {
    /// Where the client runs.
    pub client: Netns,
    /// The client's address.
    pub client_address: IpAddr,
    /// Where the server runs.
    pub server: Netns,
    /// The server's address.
    pub server_address: IpAddr,
}

/// One way for packets to go. A path is set up once, rests while others are measured, and is torn down at the end.
pub trait Path {
    /// Its name in results, such as `ovs-tap`.
    fn name(&self) -> &str;

    /// The system that it is a mode of. Modes of one system are compared by the best of them.
    fn system(&self) -> &str {
        self.name()
    }

    /// What a reader must know of how it was set up.
    fn conditions(&self) -> String;

    /// Builds it. On an error the caller cleans the scope.
    fn set_up(&mut self, scope: &Scope) -> Result<Endpoints>;

    /// Makes it use no processor time while others are measured. Needed where a path polls.
    fn pause(&mut self) -> Result<()> {
        Ok(())
    }

    /// Ends the pause.
    fn resume(&mut self) -> Result<()> {
        Ok(())
    }

    /// What its programs complain of most, if they do: why it carries nothing, perhaps.
    fn complaint(&self) -> Option<String> {
        None
    }

    /// Ends its programs. Namespaces go with the scope.
    fn tear_down(&mut self) -> Result<()> {
        Ok(())
    }
}

/// A path that somebody else has built and will take down, such as two endpoints of a running lab.
#[derive(Debug, Clone)]
pub struct ExternalPath {
    name: String,
    conditions: String,
    endpoints: Endpoints,
}

impl ExternalPath {
    /// A path between two namespaces that exist and reach each other.
    pub fn new(name: &str, conditions: &str, endpoints: Endpoints) -> Self {
        Self { name: name.to_string(), conditions: conditions.to_string(), endpoints }
    }
}

impl Path for ExternalPath {
    fn name(&self) -> &str {
        &self.name
    }

    fn conditions(&self) -> String {
        self.conditions.clone()
    }

    fn set_up(&mut self, _scope: &Scope) -> Result<Endpoints> {
        Ok(self.endpoints.clone())
    }
}
