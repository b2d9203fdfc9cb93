//! `kind: read-only`: nothing is changed, everywhere or below some folders, always or in windows.
//!
//! A call that would change something is answered with `NFS3ERR_ROFS`, as by a file system that is mounted read-only. ACCESS
//! is told without the bits of changes. COMMIT goes on, so that what was written before the freeze becomes durable.

use super::error::PolicyError;
use super::explain::{Question, Step};
use super::time::{Moment, Window, WindowFile};
use super::{Context, Policy, Verdict};
use crate::message::Call;
use crate::places::{Node, Place, ROOT, Zones};
use crate::wire::nfs3::{CHANGES, Op, Status, access};
use jiff::tz::TimeZone;
use serde::Deserialize;
use std::sync::{Mutex, PoisonError};

const CHANGE_BITS: u32 = access::MODIFY | access::EXTEND | access::DELETE;

/// The file.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields, rename_all = "kebab-case")]
pub struct FreezeFile {
    /// Folders; everything if there are none.
    #[serde(default)]
    pub paths: Vec<String>,
    /// Windows; always if there are none.
    #[serde(default)]
    pub time: Vec<WindowFile>,
    /// Time zone of the windows; the system's if there is none.
    #[serde(default)]
    pub timezone: Option<String>,
}

/// The policy.
#[derive(Debug)]
pub struct Freeze {
    nodes: Vec<Node>,
    time: Vec<Window>,
    zone: TimeZone,
    /// Whether a window holds, and until when that is sure, milliseconds since the Unix epoch.
    frozen: Mutex<(bool, u64)>,
}

impl Freeze {
    /// Checks and compiles a file; its paths are added to `zones`.
    ///
    /// # Errors
    /// What is wrong.
    pub fn compile(file: &FreezeFile, zones: &mut Zones) -> Result<Freeze, PolicyError> {
        let nodes: Vec<Node> = file.paths.iter().map(|path| zones.add(path)).collect::<Result<_, _>>()?;
        Ok(Freeze {
            nodes: if nodes.contains(&ROOT.node) { Vec::new() } else { nodes },
            time: file.time.iter().map(Window::compile).collect::<Result<_, _>>()?,
            zone: super::time::zone(file.timezone.as_deref())?,
            frozen: Mutex::new((false, 0)),
        })
    }

    fn now(&self, unix_ms: u64) -> bool {
        if self.time.is_empty() {
            return true;
        }
        let mut frozen = self.frozen.lock().unwrap_or_else(PoisonError::into_inner);
        if unix_ms >= frozen.1 || unix_ms + 60_000 < frozen.1 {
            let moment = Moment::at(unix_ms, &self.zone);
            *frozen = (self.time.iter().any(|window| window.holds(&moment)), moment.until_unix_ms);
        }
        frozen.0
    }

    fn covers(&self, place: Place, zones: &Zones) -> bool {
        self.nodes.is_empty() || self.nodes.iter().any(|above| zones.within(place.node, *above))
    }
}

impl Policy for Freeze {
    fn kind(&self) -> &'static str {
        "read-only"
    }

    fn ops(&self) -> u32 {
        (CHANGES | Op::Access.bit()) & !Op::Commit.bit()
    }

    fn needs_handles(&self) -> bool {
        !self.nodes.is_empty()
    }

    fn request(&self, call: &mut Call<'_>, context: &Context<'_>) -> Verdict {
        if !self.now(call.now.unix_ms) {
            return Verdict::Forward;
        }
        if !self.nodes.is_empty() {
            let Some(targets) = context.targets(call) else {
                return Verdict::Answer(context.places.unknown());
            };
            let places = [Some(targets.first), targets.second];
            if !places.into_iter().flatten().any(|place| self.covers(place, context.zones)) {
                return Verdict::Forward;
            }
        }
        match call.arguments.access_at {
            Some(at) => {
                let asked = call.word(at);
                call.set_word(at, asked & !CHANGE_BITS);
                Verdict::Forward
            }
            None => Verdict::Answer(Status::Rofs),
        }
    }

    fn explain(&self, question: &Question, context: &Context<'_>) -> Step {
        if self.ops() & question.op.bit() == 0 || question.op == Op::Access {
            return Step::forward("changes nothing");
        }
        if !self.now(question.unix_ms) {
            return Step::forward("outside its windows");
        }
        if !self.covers(question.place, context.zones) {
            return Step::forward("outside its folders");
        }
        Step::answer(Status::Rofs, "frozen")
    }
}

#[cfg(test)]
mod tests;
