//! What the thread that leads a hand-over asks of the slow thread, which owns what is carried.

use super::guests::Guest;
use super::message::{CarriedTap, CarriedVeth, Frozen, HeldFrame};
use crate::conntrack::{CarriedConnection, Changes};
use crate::fragments::CarriedDatagram;
use std::net::IpAddr;
use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::sync::mpsc::{Receiver, SyncSender};

/// What the thread that leads the hand-over asks.
pub enum Ask {
    /// Note from now on which connections change.
    Note(SyncSender<()>),
    /// A part of the connections.
    Part {
        /// Where it begins.
        from: usize,
        /// Most connections.
        most: usize,
        /// Who asks.
        answer: SyncSender<(Vec<CarriedConnection>, Option<usize>)>,
    },
    /// What has changed since; nothing when it is too much.
    Changes(SyncSender<Option<Changes>>),
    /// Stand still, say what there is, and wait for the verdict.
    Freeze {
        /// Who asks.
        answer: SyncSender<Result<Box<FrozenState>, String>>,
        /// Where the verdict comes.
        verdict: Receiver<Verdict>,
    },
    /// No hand-over after all.
    Forget,
}

/// What becomes of a process that stands still.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Verdict {
    /// It goes on.
    Thaw,
    /// Another one serves: it ends.
    Leave,
}

/// What a process has that stands still.
#[derive(Debug, Default)]
pub struct FrozenState {
    /// Connections that changed since they were copied.
    pub changes: Changes,
    /// TAPs of ports.
    pub taps: Vec<(CarriedTap, Arc<OwnedFd>)>,
    /// Sockets of veth pairs, with their descriptors.
    pub veths: Vec<(CarriedVeth, Vec<Arc<OwnedFd>>)>,
    /// Virtual machines.
    pub guests: Vec<Guest>,
    /// Datagrams under way.
    pub fragments: Vec<CarriedDatagram>,
    /// Switches that take partial checksums.
    pub peers: Vec<(IpAddr, u32)>,
    /// Gateways that have answered, and whether they are silent.
    pub gateways: Vec<(IpAddr, bool)>,
    /// Frames that wait for an answer.
    pub held: Vec<HeldFrame>,
    /// Figures.
    pub end: Frozen,
}
