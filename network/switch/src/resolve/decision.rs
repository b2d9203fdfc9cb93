//! A decision: what shall become of a frame, and everything that shall change for it. Making one
//! changes nothing, so a trace is the same walk without the commit (pain 10).

use crate::answer::Service;
use crate::conntrack::{Binding, ConnectionId, Sides, Way};
use crate::counters::Reason;
use crate::flow::{About, Action, CounterIndex, Hop, Ingress, MissReason, PortIndex};
use ipnet::IpNet;
use std::net::IpAddr;
use weir_model::Key;
use weir_model::resource::Direction;
use weir_packet::encap::Half;
use weir_packet::key::FlowKey;
use weir_packet::{PacketError, Parsed};

/// A frame as it came in.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Arrival<'a> {
    pub(crate) now_ms: u64,
    pub(crate) ingress: &'a Ingress,
    /// Its key; the zone is the network's identifier, or zero from outside.
    pub(crate) key: FlowKey,
    pub(crate) reason: MissReason,
    pub(crate) frame: &'a [u8],
    pub(crate) parsed: &'a Parsed,
}

impl Arrival<'_> {
    pub(crate) fn source(&self) -> IpAddr {
        self.key.source.into()
    }

    pub(crate) fn destination(&self) -> IpAddr {
        self.key.destination.into()
    }

    /// What the half of the firewall decided that it comes from.
    pub(crate) fn half(&self) -> Half {
        if let Ingress::Underlay { half, .. } = *self.ingress { half } else { Half::Unsaid }
    }

    /// Whether the flow table may hold a flow for it.
    pub(crate) fn may_install(&self) -> bool {
        self.reason == MissReason::NoFlow && self.parsed.destination_mac[0] & 1 == 0
    }
}

/// What decided.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Cause {
    Reason(Reason),
    Malformed(PacketError),
    /// A rule, by its number in its direction.
    Rule {
        vni: u32,
        direction: Direction,
        rule: u32,
    },
    /// The default of a direction.
    Default {
        vni: u32,
        direction: Direction,
    },
    Route {
        vni: u32,
        prefix: IpNet,
    },
    /// What a connection was counted under when it opened.
    Counter(CounterIndex),
    Path(Path),
}

/// Ways that packets go without a rule that decides.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub(crate) enum Path {
    /// Through a gateway from host to host.
    Hoverboard,
    /// Out through a gateway.
    External,
    /// An ICMP error about a connection.
    Related,
    /// A connection of before a restart that was not judged again yet.
    Restored,
    /// A host asks a gateway whether it forwards.
    Probe,
}

impl Path {
    pub(crate) const ALL: [Path; 5] =
        [Path::Hoverboard, Path::External, Path::Related, Path::Restored, Path::Probe];

    pub(crate) fn as_str(self) -> &'static str {
        match self {
            Path::Hoverboard => "hoverboard",
            Path::External => "external",
            Path::Related => "related",
            Path::Restored => "restored",
            Path::Probe => "probe",
        }
    }
}

/// What the flow table shall hold for a dropped packet.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Install {
    /// Nothing: the verdict is not for the whole flow.
    Nothing,
    /// A flow that drops.
    Flow,
    /// A flow that drops as long as no connection allows it.
    Denied,
}

/// Who pays for an ICMP error.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Budget {
    Port(PortIndex),
    Network(u32),
    External,
    /// Answers that are no errors.
    Free,
}

/// What becomes of a packet's connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Track {
    /// No connection; the other way is asked for when it comes.
    Untracked,
    /// No connection for want of room, but the rules allow both ways (row A24).
    BothWays,
    /// A connection that exists; `judged` when the rules were asked anew.
    Known { id: ConnectionId, way: Way, judged: Option<(u64, Sides)>, replies: bool },
    /// A connection opens.
    New { sides: Sides, binding: Option<Binding> },
    /// A connection that the receiver of this packet opened goes on, which only the sender's switch remembers.
    Resumed { sides: Sides },
    /// The verdict is for this packet alone.
    Alone,
}

/// A flow that goes on.
#[derive(Clone, Debug)]
pub(crate) struct Forward {
    /// Counter and connection are filled in by the commit.
    pub(crate) action: Action,
    pub(crate) cause: Cause,
    pub(crate) track: Track,
    /// The flow of the other way, if it is to be there too.
    pub(crate) reverse: Vec<(Ingress, FlowKey, Action)>,
    /// A revoked connection that ends because this one opens.
    pub(crate) revoke: Option<ConnectionId>,
}

impl Forward {
    /// One way only.
    pub(crate) fn plain(action: Action, cause: Cause, track: Track) -> Forward {
        Forward { action, cause, track, reverse: Vec::new(), revoke: None }
    }
}

/// See the module.
#[derive(Clone, Debug)]
pub(crate) enum Decision {
    Forward(Box<Forward>),
    /// This frame alone goes on, as it is here.
    Send {
        hop: Hop,
        frame: Vec<u8>,
        cause: Cause,
    },
    /// The frame ends and is answered; `cause` is what it is counted under if it is lost.
    Answer {
        service: Service,
        frame: Vec<u8>,
        budget: Budget,
        cause: Option<Cause>,
        install: Install,
    },
    Punt(Service),
    /// The frame waits until the controllers have answered.
    Ask(About),
    Drop {
        cause: Cause,
        install: Install,
        revoke: Option<ConnectionId>,
    },
}

impl Decision {
    /// A drop that is for the whole flow.
    pub(crate) fn drop_flow(reason: Reason) -> Decision {
        Decision::Drop { cause: Cause::Reason(reason), install: Install::Flow, revoke: None }
    }

    /// The same, for this packet alone.
    pub(crate) fn for_this_alone(self) -> Decision {
        match self {
            Decision::Drop { cause, revoke, .. } => {
                Decision::Drop { cause, install: Install::Nothing, revoke }
            }
            other => other,
        }
    }

    /// A drop of this packet alone.
    pub(crate) fn drop_packet(reason: Reason) -> Decision {
        Decision::Drop { cause: Cause::Reason(reason), install: Install::Nothing, revoke: None }
    }
}

/// The result of a stage: go on with a value, or the decision.
pub(crate) type Stage<T> = Result<T, Decision>;

/// One step of the walk, for those who watch.
#[derive(Clone, Debug)]
pub(crate) struct Step {
    pub(crate) stage: &'static str,
    pub(crate) detail: String,
    pub(crate) rule: Option<String>,
    pub(crate) key: Option<Key>,
}

/// Watches the stages. The packet path watches with `()`, which costs nothing.
pub(crate) trait Observer {
    fn step(&mut self, step: impl FnOnce() -> Step);

    /// A step that no rule and no entry decided.
    fn note(&mut self, stage: &'static str, detail: impl FnOnce() -> String) {
        self.step(|| Step { stage, detail: detail(), rule: None, key: None });
    }
}

impl Observer for () {
    fn step(&mut self, _: impl FnOnce() -> Step) {}
}

impl Observer for Vec<Step> {
    fn step(&mut self, step: impl FnOnce() -> Step) {
        self.push(step());
    }
}
