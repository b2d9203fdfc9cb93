//! Certificates to the other members, later and fewer; and from them, the ones that bring a member forward first.
//!
//! Simplex has every member send each certificate that it puts together to all others, a notarization and a finalization a view: half of
//! all messages, and as much of the work of agreeing. The others put the same certificates together from the votes, which all members
//! send to all. So a certificate only helps whom votes did not reach. Here it is held for a moment, and goes only if it still says something
//! then: of finalizations the newest, of others those of later views.
//!
//! Where votes go by way of the leader ([`crate::collecting`]), its certificates are what all wait for, and go at once.
//!
//! Nothing but time rests on it: a member that waits for a certificate has it that moment later, which is shorter than any timeout of
//! consensus, or asks for it.
//!
//! A member that was away knows thousands of views less than the others. A finalization takes it over all of them; of any other certificate
//! of a view far ahead simplex asks the others for what ended each view between, one question a view, which is without end where links come
//! and go. So [`Near`] leaves out such certificates for [`WAITS`] waits of [`Timers::ask`]: a finalization comes with nearly every view. After
//! that they are let through, for it may be that nothing can be finalized without this member.

use std::fmt;
use std::num::NonZeroUsize;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::time::{Duration, SystemTime};

use commonware_actor::{Feedback, Unreliable};
use commonware_codec::ReadExt;
use commonware_consensus::types::Round;
use commonware_p2p::{CheckedSender, LimitedSender, Message, Receiver, Recipients, Sender};
use commonware_runtime::{Clock, IoBuf, IoBufs, Spawner};
use commonware_utils::channel::mpsc;

use crate::lock::locked;
use crate::settings::Timers;
use crate::turns::Now;

/// How simplex begins the bytes of a finalization.
const FINALIZATION: u8 = 2;
/// Most certificates that are held; of more the oldest go at once.
const HELD_MAX: usize = 256;
/// A certificate of a view that is more than so many ahead of the last finalized one that this member knows of is far ahead.
const AHEAD_MAX: u64 = 256;
/// How long those that are far ahead are left out, in times of [`Timers::ask`].
const WAITS: u32 = 20;

/// How long a certificate is held: longer than an idle leader holds its view, so that an idle group sends one in a while, and
/// shorter than any wait of consensus (a leader may be silent for two idle views at least).
pub(crate) fn hold(timers: &Timers) -> Duration {
    timers.idle + timers.idle / 4
}

/// A certificate that is held.
struct One<P: commonware_cryptography::PublicKey> {
    /// The view, and whether it is a finalization; none if that cannot be read, and it is sent in any case.
    says: Option<(u64, bool)>,
    to: Recipients<P>,
    bytes: IoBuf,
    priority: bool,
}

/// What is held.
struct Held<P: commonware_cryptography::PublicKey> {
    certificates: Vec<One<P>>,
    /// The newest finalization that was ever to be sent.
    finalized: Option<u64>,
    /// Somebody is going to send them.
    awaited: bool,
}

impl<P: commonware_cryptography::PublicKey> Held<P> {
    fn new() -> Held<P> {
        Held { certificates: Vec::new(), finalized: None, awaited: false }
    }

    /// Holds one more; tells whether somebody must be told to send it.
    fn add(&mut self, one: One<P>) -> bool {
        if let Some((view, true)) = one.says {
            self.finalized = self.finalized.max(Some(view));
        }
        if self.certificates.len() >= HELD_MAX {
            self.forget_superseded();
        }
        self.certificates.push(one);
        !std::mem::replace(&mut self.awaited, true)
    }

    fn forget_superseded(&mut self) {
        let Some(finalized) = self.finalized else { return };
        let mut told = false;
        // From the newest, so that of two with the same news the later one stays.
        let mut kept: Vec<One<P>> = std::mem::take(&mut self.certificates);
        kept.reverse();
        kept.retain(|one| match one.says {
            Some((view, true)) => view == finalized && !std::mem::replace(&mut told, true),
            Some((view, false)) => view > finalized,
            None => true,
        });
        kept.reverse();
        self.certificates = kept;
    }

    /// Those that still say something.
    fn take(&mut self) -> Vec<One<P>> {
        self.forget_superseded();
        self.awaited = false;
        std::mem::take(&mut self.certificates)
    }
}

/// What a certificate says: its view, and whether it is a finalization.
fn says(bytes: &IoBuf) -> Option<(u64, bool)> {
    let mut reader = bytes.clone();
    let kind = u8::read(&mut reader).ok()?;
    let round = Round::read(&mut reader).ok()?;
    Some((round.view().get(), kind == FINALIZATION))
}

/// A sender of certificates that holds them.
pub(crate) struct Late<S: Sender> {
    held: Arc<Mutex<Held<S::PublicKey>>>,
    wake: mpsc::UnboundedSender<()>,
    /// Sends those of views for which this says so at once.
    at_once: Option<(S, Arc<Leads>)>,
}

/// Whether this member collects the votes of a view.
pub(crate) type Leads = dyn Fn(u64) -> bool + Send + Sync;

impl<S: Sender> Clone for Late<S> {
    fn clone(&self) -> Self {
        Late { held: self.held.clone(), wake: self.wake.clone(), at_once: self.at_once.clone() }
    }
}

impl<S: Sender> Late<S> {
    /// Sends over `sender`, each after so long at most. Ends when nobody has it any more and all is sent.
    pub fn new<E: Clock + Spawner>(context: E, mut sender: S, hold: Duration) -> Late<S> {
        let held = Arc::new(Mutex::new(Held::new()));
        let (wake, mut woken) = mpsc::unbounded_channel();
        let own = held.clone();
        context.spawn(move |context| async move {
            while woken.recv().await.is_some() {
                context.sleep(hold).await;
                let due = locked(&own).take();
                for One { to, bytes, priority, .. } in due {
                    sender.send(to, bytes, priority);
                }
            }
        });
        Late { held, wake, at_once: None }
    }

    /// The same, but those of views that this member leads go at once, over `sender`.
    pub fn at_once(self, sender: S, leads: Arc<Leads>) -> Late<S> {
        Late { at_once: Some((sender, leads)), ..self }
    }
}

impl<S: Sender> LimitedSender for Late<S> {
    type PublicKey = S::PublicKey;
    type Checked<'a> = Checked<'a, S>;

    fn check(&mut self, to: Recipients<S::PublicKey>) -> Result<Checked<'_, S>, SystemTime> {
        Ok(Checked { late: self, to })
    }
}

/// Takes one certificate; limits are looked at when it goes.
pub(crate) struct Checked<'a, S: Sender> {
    late: &'a mut Late<S>,
    to: Recipients<S::PublicKey>,
}

impl<S: Sender> CheckedSender for Checked<'_, S> {
    type PublicKey = S::PublicKey;

    fn recipients(&self) -> Vec<S::PublicKey> {
        match &self.to {
            // Who that is shows when it goes.
            Recipients::All => Vec::new(),
            Recipients::Some(to) => to.to_vec(),
            Recipients::One(to) => vec![to.clone()],
        }
    }

    fn send(self, message: impl Into<IoBufs> + Send, priority: bool) -> Unreliable<Feedback> {
        let bytes = message.into().coalesce();
        let says = says(&bytes);
        if let (Some((sender, leads)), Some((view, _))) = (&mut self.late.at_once, says)
            && leads(view)
        {
            sender.send(self.to, bytes, priority);
            return Unreliable::Outcome(Feedback::Ok);
        }
        let one = One { says, to: self.to, bytes, priority };
        if locked(&self.late.held).add(one) && self.late.wake.send(()).is_err() {
            return Unreliable::Outcome(Feedback::Closed);
        }
        Unreliable::Outcome(Feedback::Ok)
    }
}

/// A receiver of certificates that leaves out, for a while, those that are far ahead and no finalizations.
pub(crate) struct Near<R> {
    inner: R,
    /// The last finalized view that this member knows of.
    view: Arc<AtomicU64>,
    limit: Duration,
    now: Now,
    /// Since when a finalization is waited for, and with which view: what others send does not begin the wait anew.
    since: Option<(SystemTime, u64)>,
    left_out: Arc<AtomicU64>,
}

impl<R> Near<R> {
    /// Of what `inner` receives; `left_out` counts.
    pub fn new(
        inner: R,
        view: Arc<AtomicU64>,
        timers: &Timers,
        now: Now,
        left_out: Arc<AtomicU64>,
    ) -> Near<R> {
        Near { inner, view, limit: WAITS * timers.ask, now, since: None, left_out }
    }

    fn lets_through(&mut self, bytes: &IoBuf) -> bool {
        // What cannot be read is for consensus to judge.
        let Some((view, finalization)) = says(bytes) else { return true };
        let known = self.view.load(Ordering::Relaxed);
        if view <= known.saturating_add(AHEAD_MAX) || finalization {
            return true;
        }
        let now = (self.now)();
        let since = match self.since {
            Some((since, then)) if then == known => since,
            _ => self.since.insert((now, known)).0,
        };
        if now.duration_since(since).unwrap_or_default() >= self.limit {
            return true;
        }
        self.left_out.fetch_add(1, Ordering::Relaxed);
        false
    }
}

impl<R: fmt::Debug> fmt::Debug for Near<R> {
    fn fmt(&self, to: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.inner.fmt(to)
    }
}

impl<R: Receiver> Receiver for Near<R> {
    type Error = R::Error;
    type PublicKey = R::PublicKey;

    async fn recv(&mut self) -> Result<Message<R::PublicKey>, R::Error> {
        loop {
            let message = self.inner.recv().await?;
            if self.lets_through(&message.1) {
                return Ok(message);
            }
        }
    }

    fn capacity(&self) -> NonZeroUsize {
        self.inner.capacity()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use commonware_codec::Encode;
    use commonware_consensus::types::{Epoch, View};
    use commonware_cryptography::ed25519::PublicKey;

    fn one(kind: u8, view: u64) -> One<PublicKey> {
        let round = Round::new(Epoch::new(3), View::new(view));
        let bytes = IoBuf::from([&[kind][..], &round.encode()].concat());
        One { says: says(&bytes), to: Recipients::All, bytes, priority: true }
    }

    fn left(held: &mut Held<PublicKey>) -> Vec<(u64, bool)> {
        held.take().into_iter().filter_map(|one| one.says).collect()
    }

    #[test]
    fn only_what_still_says_something_goes() {
        let mut held = Held::new();
        assert!(held.add(one(0, 4)), "somebody must be told");
        for (kind, view) in [(2, 4), (0, 5), (2, 5), (2, 5), (1, 6), (0, 7)] {
            assert!(!held.add(one(kind, view)));
        }
        assert_eq!(left(&mut held), [(5, true), (6, false), (7, false)]);
        // What came before the newest finalization does not go later either.
        assert!(held.add(one(0, 5)));
        assert_eq!(left(&mut held), []);
        assert!(held.add(one(1, 6)));
        assert_eq!(left(&mut held), [(6, false)]);
    }

    #[test]
    fn what_cannot_be_read_goes_in_any_case_and_what_is_held_is_bounded() {
        let mut held = Held::new();
        let bytes = IoBuf::from(vec![9]);
        held.add(One { says: says(&bytes), to: Recipients::All, bytes, priority: false });
        for view in 0..10 * HELD_MAX as u64 {
            held.add(one(0, view));
            held.add(one(2, view));
        }
        assert!(held.certificates.len() <= HELD_MAX + 1, "{}", held.certificates.len());
        let left = held.take();
        assert_eq!((left.len(), left[0].says), (2, None));
    }

    #[test]
    fn who_was_away_is_brought_forward_by_a_finalization_and_waits_for_none_for_ever() {
        let clock = Arc::new(AtomicU64::new(0));
        let (view, left_out) = (Arc::new(AtomicU64::new(10)), Arc::new(AtomicU64::new(0)));
        let own = clock.clone();
        let now =
            Box::new(move || SystemTime::UNIX_EPOCH + Duration::from_millis(own.load(Ordering::Relaxed)));
        let mut near = Near::new((), view.clone(), &Timers::LAN, now, left_out.clone());
        let mut lets = |kind: u8, view: u64| near.lets_through(&one(kind, view).bytes);
        let far = 10 + AHEAD_MAX + 1;
        assert!(lets(0, far - 1) && lets(1, far - 1));
        assert!(!lets(0, far) && !lets(1, far + 7_000) && lets(2, far + 7_000));
        // Not the finalization itself, but that consensus took it, brings the rest near.
        assert!(!lets(0, far + 7_001));
        view.store(far + 7_000, Ordering::Relaxed);
        assert!(lets(0, far + 7_001));
        assert_eq!(left_out.load(Ordering::Relaxed), 3);
        // Far once more, and this time no finalization comes.
        assert!(!lets(1, far + 20_000) && lets(0, 4));
        let limit_ms = (WAITS * Timers::LAN.ask).as_millis() as u64;
        clock.store(limit_ms - 1, Ordering::Relaxed);
        assert!(!lets(1, far + 20_000));
        clock.store(limit_ms, Ordering::Relaxed);
        assert!(lets(1, far + 20_000));
        assert!(near.lets_through(&IoBuf::from(vec![9])), "what cannot be read is let through");
    }
}
