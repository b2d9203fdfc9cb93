//! What a session may use while it works.

use super::Shared;
use crate::message::{EntryHandles, Now};
use crate::policy::Chain;
use crate::wire::nfs4::arguments::Compound;
use crate::wire::nfs4::results::Results4;
use crate::wire::reply::Results;
use std::net::{SocketAddr, UdpSocket};
use std::sync::Arc;

/// See the module.
#[derive(Debug)]
pub struct Env<'a> {
    /// What all workers share.
    pub shared: &'a Shared,
    /// Number of this worker.
    pub worker: usize,
    /// What time it is.
    pub now: Now,
    /// The chain in force.
    pub chain: &'a Arc<Chain>,
    /// Memory for decoding.
    pub results: &'a mut Results,
    /// Memory for decoding a COMPOUND.
    pub compound: &'a mut Compound,
    /// Memory for decoding the results of a COMPOUND.
    pub results4: &'a mut Results4,
    /// Memory for the handles of entries.
    pub entry_handles: &'a mut EntryHandles,
    /// Memory for a datagram.
    pub datagram: &'a mut Vec<u8>,
    /// The socket of UDP clients.
    pub udp: Option<&'a UdpSocket>,
}

impl Env<'_> {
    /// Sends a datagram; what the network does not take is lost, as on any network.
    pub fn send_datagram(&self, datagram: &[u8], to: SocketAddr) {
        if let Some(udp) = self.udp {
            let _ = udp.send_to(datagram, to);
        }
    }
}
