//! Sessions with actuators over mutual TLS: handshake, `Hello`, heartbeats, and frames both ways.
//!
//! A session is one task with a reading and a writing half; when either ends, the session ends. The
//! name in the client's certificate (its DNS name, or else its common name) must be the actuator's.

use super::frame::{read_frame, write_frame};
use super::handle::ControllerHandle;
use super::identities::{Asks, Renewer, certificate_key, certificate_of_pem};
use super::moves::MOVE_REST;
use crate::Error;
use crate::core::Input;
use crate::core::admission::Unauthentic;
use crate::core::identities::{Certified, Row};
use crate::core::tokens::{TokenRow, TokenState, tokens};
use std::net::IpAddr;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::{Duration, UNIX_EPOCH};
use tokio::io::{AsyncRead, AsyncWrite, ReadHalf, WriteHalf};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::mpsc;
use tokio::time::{Instant, interval, timeout};
use tokio_rustls::TlsAcceptor;
use weir_admission::{Door, Guarded};
use weir_base::codec::{CodecError, decode};
use weir_model::Label;
use weir_model::event::{ActuatorFacts, EventBody, SPEAKS_TABLE, SourceId, USAGE_FLOWS_MAX};
use weir_model::identity::IdentityEvent;
use weir_model::session::{
    PROTOCOL, PROTOCOL_MIN, REQUEST_BYTES_MAX, STATE_CHUNK_KEYS, StateDigest, ToActuator, ToController,
};
use x509_parser::prelude::{FromDer, GeneralName, X509Certificate};

/// What those around the controller say about sessions.
#[derive(Clone)]
pub struct SessionAccess {
    /// TLS; it must require a client certificate of the domain.
    pub tls: Arc<rustls::ServerConfig>,
    /// Whether an actuator may come that has not joined before, or was forgotten since. Its
    /// certificate alone lets it in then.
    pub strangers: bool,
    /// Signs new certificates for actuators that have joined.
    pub renewer: Arc<Renewer>,
    /// The door that sessions come through; those who are not known yet have few places of it.
    pub door: Arc<Door>,
}

impl std::fmt::Debug for SessionAccess {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("SessionAccess").field("strangers", &self.strangers).finish_non_exhaustive()
    }
}

/// Serves sessions until the controller stops.
///
/// # Errors
/// [`Error::Stopped`] when the controller ended by itself, because it could not follow the order; the
/// log says why.
pub async fn serve_sessions(
    handle: ControllerHandle,
    listener: TcpListener,
    access: SessionAccess,
) -> Result<(), Error> {
    let acceptor = TlsAcceptor::from(access.tls.clone());
    let mut ends = handle.shared.ends.subscribe();
    loop {
        let (stream, peer) = tokio::select! {
            accepted = weir_admission::accept(&listener, &access.door) => accepted,
            _ = ends.wait_for(|ends| *ends) => {
                return if handle.shared.has_failed() { Err(Error::Stopped) } else { Ok(()) };
            }
        };
        let (handle, acceptor, access) = (handle.clone(), acceptor.clone(), access.clone());
        tokio::spawn(async move {
            if let Err(error) = serve(&handle, (stream, peer.ip()), &acceptor, &access).await {
                handle.shared.counters.sessions_failed.fetch_add(1, Ordering::Relaxed);
                tracing::info!(%peer, %error, "session ended");
            }
        });
    }
}

async fn serve(
    handle: &ControllerHandle,
    (stream, from): (Guarded<TcpStream>, IpAddr),
    acceptor: &TlsAcceptor,
    access: &SessionAccess,
) -> Result<(), Error> {
    let settings = handle.shared.session_settings;
    let place = stream.place().clone();
    let limit = Duration::from_millis(settings.handshake_ms);
    let late = |_| Error::Peer(format!("no handshake and Hello within {} ms", settings.handshake_ms));
    let deadline = Instant::now() + limit;
    let mut stream = timeout(limit, acceptor.accept(stream))
        .await
        .map_err(late)?
        .map_err(Error::system("the TLS handshake"))?;
    place.shaken();
    let chain = stream.get_ref().1.peer_certificates();
    let name = certificate_name(chain)?;
    // What was taken in the handshake may have been refused since, and a resumed stream shows what it showed before.
    let shown = certificate_key(chain.and_then(<[_]>::first).map_or(&[][..], |leaf| leaf))?;
    let source = SourceId::of_actuator(&name);
    let taken = handle.shared.takes_certificate(&source, &shown);
    let hello =
        tokio::time::timeout_at(deadline, read_frame::<ToController>(&mut stream)).await.map_err(late)??;
    let whose = || source.0.clone();
    let taken = taken.map_err(|reason| Error::Identity { whose: whose(), reason });
    if taken.is_ok() {
        place.admit(&source.0).map_err(|full| {
            handle.shared.counters.sessions_refused.fetch_add(1, Ordering::Relaxed);
            Error::Peer(full.to_string())
        })?;
        // Whoever has been renewed opens another session with what it got.
        if let Some(at) = over_at(handle, shown.until_s) {
            place.until(at);
        }
    }
    let admitted = match taken.and_then(|()| check(&name, hello)) {
        // An order that stands still holds up no session for ever: the actuator tries again.
        Ok(hello) => match timeout(limit, join(handle, (&hello.facts, from), access.strangers)).await {
            Ok(joined) => joined.map(|()| hello),
            Err(_) => {
                let text = format!("its facts were not ordered within {} ms", settings.handshake_ms);
                Err(Error::Peer(text))
            }
        },
        Err(error) => Err(error),
    };
    match admitted {
        Ok(hello) => {
            if !access.strangers {
                note_certificate(handle, &source, shown);
            }
            run(handle, (hello, shown), stream, &*access.renewer).await
        }
        Err(error) => {
            let refused = ToActuator::Refused(error.to_string());
            timeout(limit, write_frame(&mut stream, &refused)).await.map_err(late)??;
            Err(error)
        }
    }
}

/// Orders which certificate an actuator shows, where that is not known: it joined with another release, or was renewed where it could
/// not be ordered.
fn note_certificate(handle: &ControllerHandle, source: &SourceId, shown: Certified) {
    let Certified { key, until_s, .. } = shown;
    let known = handle.published();
    if known.operators.owners_certificates() {
        return;
    }
    let row = known.identities.row(source);
    let told = |row: &Row| row.certificates.iter().any(|known| known.key == key && known.until_s >= until_s);
    if handle.leads() && !row.is_some_and(told) {
        let about = IdentityEvent::Certified { whose: source.clone(), key, until_s };
        handle.shared.offer(EventBody::Identity(Box::new(about)));
    }
}

/// When a certificate is over that ends so many seconds after the Unix epoch, by the clocks of the group.
fn over_at(handle: &ControllerHandle, until_s: u64) -> Option<std::time::Instant> {
    let now = handle.time().by_clocks().duration_since(UNIX_EPOCH).unwrap_or_default();
    std::time::Instant::now().checked_add(Duration::from_secs(until_s).saturating_sub(now))
}

struct Hello {
    protocol: u32,
    facts: ActuatorFacts,
    software: String,
    digest: StateDigest,
}

fn check(certificate: &Label, frame: ToController) -> Result<Hello, Error> {
    let ToController::Hello { protocol, actuator, role, software, identity, underlay, digest } = frame else {
        return Err(Error::Peer("the first frame must be Hello".into()));
    };
    if !(PROTOCOL_MIN..=PROTOCOL).contains(&protocol) {
        let older = if protocol < PROTOCOL_MIN { "this host or gateway" } else { "the controllers" };
        let text = format!(
            "it speaks protocol {protocol} of sessions and the controllers {PROTOCOL_MIN} to {PROTOCOL}: upgrade {older}"
        );
        return Err(Error::Peer(text));
    }
    if actuator != *certificate {
        let text =
            format!("Hello is of '{actuator}', the certificate of '{certificate}': they must be the same");
        return Err(Error::Peer(text));
    }
    Ok(Hello {
        protocol,
        facts: ActuatorFacts { name: actuator, role, identity, underlay },
        software,
        digest,
    })
}

/// Orders what the actuator tells of itself, unless it is known.
async fn join(
    handle: &ControllerHandle,
    (facts, from): (&ActuatorFacts, IpAddr),
    strangers: bool,
) -> Result<(), Error> {
    let published = handle.published();
    let refused = |why: &str| Err(Error::Peer(format!("'{}' {why}", facts.name)));
    match published.joined.get(&facts.name) {
        Some(known) if known == facts => return Ok(()),
        // Its change of keys is under way: it comes once more with the new one.
        Some(known) if known.identity != facts.identity && is_previous(handle, facts) => return Ok(()),
        Some(known) if known.identity != facts.identity => {
            return refused("joined with another identity: forget it first, or choose another name");
        }
        None if !strangers => {
            // Who is new in a group, or behind, or cut off, knows of nobody yet.
            if handle.shared.replicated
                && let Err(error) = handle.barrier().await
            {
                let known = handle.shared.sessions.known_controllers();
                return refused(&format!(
                    "is not known to this controller, which cannot say that it has all that was ordered: it is new in the group, behind, \
                     or another one leads. Keep membership.json; {}",
                    who_answers(&error, &known)
                ));
            }
            if handle.published().joined.get(&facts.name) == Some(facts) {
                return Ok(());
            }
            return refused(
                "has not joined, or was forgotten: to let it in, remove membership.json from its state \
                 directory and start it with a new token (WEIR_JOIN_TOKEN or --join-file)",
            );
        }
        _ => {}
    }
    if published.operators.in_force() {
        return refused(
            "told the domain other facts when it joined, and no controller may say for it that they changed: make a new join token with \
             'weir token', remove membership.json from its state directory and start it with that (WEIR_JOIN_TOKEN or --join-file)",
        );
    }
    if !strangers {
        may_move(handle, facts, from)?;
    }
    handle.joined(facts.clone()).await.map(drop)
}

/// Where to ask instead of a controller that cannot answer for the group: who leads, when it knows that, and where all are.
fn who_answers(error: &Error, known: &[String]) -> String {
    let leads = match error {
        Error::Order(weir_order::Error::NotLeader { leader: Some(leader) }) => {
            format!("controller {leader} leads; ")
        }
        _ => String::new(),
    };
    match known {
        [] => format!("{leads}the others answer"),
        known => {
            format!("{leads}the others answer; the controllers of the group are at {}", known.join(", "))
        }
    }
}

/// Whether an actuator that has joined may say that it has another address on the underlay now.
fn may_move(handle: &ControllerHandle, facts: &ActuatorFacts, from: IpAddr) -> Result<(), Error> {
    let published = handle.published();
    let known = published.joined.get(&facts.name).map(|known| known.underlay);
    if known == Some(facts.underlay) {
        return Ok(());
    }
    let refused = |why: String| {
        handle.shared.counters.underlays_refused.fetch_add(1, Ordering::Relaxed);
        Err(Error::Peer(why))
    };
    if let Err(why) = handle.may_have(facts) {
        return refused(format!("'{}': {why}", facts.name));
    }
    let source = SourceId::of_actuator(&facts.name);
    let allowed = |row: &TokenRow| {
        row.whose == source
            && matches!(row.state, TokenState::Used { .. })
            && row.underlay.is_some_and(|prefix| prefix.contains(&facts.underlay))
    };
    if facts.underlay != from.to_canonical() && !tokens(&published.store).any(|(_, row)| allowed(&row)) {
        return refused(format!(
            "'{0}' speaks from {1} and says that its address on the underlay is {2}: it may have the one that it speaks from, or one that \
             its join token allows ('weir token --name {0} --underlay {2}')",
            facts.name,
            from.to_canonical(),
            facts.underlay
        ));
    }
    match handle.shared.moves.may(&facts.name) {
        true => Ok(()),
        false => refused(format!(
            "'{}' changed its address on the underlay less than {} s ago: it may do so again then",
            facts.name,
            MOVE_REST.as_secs()
        )),
    }
}

fn is_previous(handle: &ControllerHandle, facts: &ActuatorFacts) -> bool {
    let keys = handle.shared.keys_of(&SourceId::of_actuator(&facts.name));
    keys.is_ok_and(|keys| keys.before == Some(facts.identity))
}

/// A new certificate, for an actuator that is still a member with the identity of its session.
fn renew(
    handle: &ControllerHandle,
    member: (&Label, &[u8; 32]),
    csr_pem: &str,
    renewer: &Renewer,
) -> ToActuator {
    let (name, identity) = member;
    let known = handle.published();
    let counters = &handle.shared.counters;
    let signed = match known.joined.get(name) {
        Some(known) if known.identity != *identity => Err("it has another identity now".to_string()),
        None => Err("it was forgotten: join again".to_string()),
        Some(_) if csr_pem.len() > REQUEST_BYTES_MAX => {
            Err(format!("the request has {} bytes: at most {REQUEST_BYTES_MAX}", csr_pem.len()))
        }
        Some(_) => renewer(name, csr_pem).and_then(|certificate_pem| {
            if !known.operators.owners_certificates() {
                return Ok(certificate_pem);
            }
            // One that would not be taken is not worth to be kept.
            let shown = certificate_of_pem(&certificate_pem)?;
            let source = SourceId::of_actuator(name);
            match handle.shared.takes_certificate(&source, &shown) {
                Err(reason @ Unauthentic::Unowned) => Err(reason.to_string()),
                _ => Ok(certificate_pem),
            }
        }),
    };
    match signed {
        Ok(certificate_pem) => {
            counters.renewals.fetch_add(1, Ordering::Relaxed);
            tracing::info!(actuator = %name, "certificate renewed");
            ToActuator::Renewed { certificate_pem }
        }
        Err(reason) => {
            counters.renewals_refused.fetch_add(1, Ordering::Relaxed);
            tracing::warn!(actuator = %name, reason, "certificate not renewed");
            ToActuator::NotRenewed(reason)
        }
    }
}

/// The actuator's name in its certificate.
fn certificate_name(chain: Option<&[rustls::pki_types::CertificateDer<'_>]>) -> Result<Label, Error> {
    let bad = |text: String| Error::Peer(text);
    let leaf = chain.and_then(<[_]>::first).ok_or_else(|| bad("the peer has no certificate".into()))?;
    let (_, certificate) = X509Certificate::from_der(leaf)
        .map_err(|error| bad(format!("the certificate cannot be read: {error}")))?;
    let names = certificate.subject_alternative_name().ok().flatten();
    let dns = names.and_then(|names| {
        names.value.general_names.iter().find_map(|name| match name {
            GeneralName::DNSName(name) => Some(*name),
            _ => None,
        })
    });
    let common = certificate.subject().iter_common_name().find_map(|name| name.as_str().ok());
    let name = dns.or(common).ok_or_else(|| bad("the certificate names nobody".into()))?;
    Label::new(name).map_err(|error| bad(format!("the certificate's name: {error}")))
}

async fn run<S: AsyncRead + AsyncWrite>(
    handle: &ControllerHandle,
    (hello, shown): (Hello, Certified),
    stream: S,
    renewer: &Renewer,
) -> Result<(), Error> {
    let (actuator, identity) = (hello.facts.name, hello.facts.identity);
    let protocol = hello.protocol;
    let welcome = ToActuator::Welcome { protocol, epoch: handle.published().epoch };
    let (session, queue) = handle.shared.sessions.open(&actuator, (hello.software, protocol, shown), welcome);
    tracing::info!(%actuator, session, protocol, "session opened");
    let connected = Input::Connected { actuator: actuator.clone(), session, digest: hello.digest };
    let (reader, writer) = tokio::io::split(stream);
    let ended = match handle.input(connected).await {
        Err(error) => Err(error),
        Ok(()) => {
            let settings = handle.shared.session_settings;
            let dead = Duration::from_millis(settings.dead_ms);
            let peer = Peer { actuator: &actuator, protocol, identity, shown, session, renewer };
            tokio::select! {
                ended = read(handle, &peer, reader, dead) => ended,
                ended = write(queue, writer, Duration::from_millis(settings.ping_ms.max(1)), dead) => ended,
            }
        }
    };
    handle.shared.sessions.ended(&actuator, session);
    // Fails only when the controller stops.
    let _ = handle.input(Input::Disconnected { actuator: actuator.clone(), session }).await;
    tracing::info!(%actuator, session, "session closed");
    ended
}

/// Whom a session is with.
struct Peer<'a> {
    actuator: &'a Label,
    protocol: u32,
    identity: [u8; 32],
    shown: Certified,
    session: u64,
    renewer: &'a Renewer,
}

async fn read<S: AsyncRead>(
    handle: &ControllerHandle,
    peer: &Peer<'_>,
    mut reader: ReadHalf<S>,
    dead: Duration,
) -> Result<(), Error> {
    let (actuator, session) = (peer.actuator, peer.session);
    let source = SourceId::of_actuator(actuator);
    note_protocol(handle, peer);
    let mut noted = Instant::now();
    loop {
        let frame = timeout(dead, read_frame::<ToController>(&mut reader)).await;
        let frame =
            frame.map_err(|_| Error::Peer(format!("nothing was heard for {} ms", dead.as_millis())))?;
        let frame = match frame {
            Err(Error::Frame(error)) if matches!(*error, CodecError::Closed) => return Ok(()),
            other => other?,
        };
        match frame {
            ToController::Hello { .. } => return Err(Error::Peer("a second Hello".into())),
            ToController::State { entries, last } => {
                let actuator = actuator.clone();
                handle.input(Input::State { actuator, session, entries, last }).await?;
            }
            ToController::Plane { plane, entries, last } => {
                let count = entries.as_ref().map_or(0, Vec::len);
                if count > STATE_CHUNK_KEYS {
                    let text =
                        format!("{count} keys of plane {plane} in one frame: at most {STATE_CHUNK_KEYS}");
                    return Err(Error::Peer(text));
                }
                let actuator = actuator.clone();
                handle.input(Input::Plane { actuator, session, plane, entries, last }).await?;
            }
            ToController::Acks(acks) if acks.actuator != *actuator => {
                return Err(Error::Peer(format!("acks of '{}'", acks.actuator)));
            }
            ToController::Acks(acks) => handle.input(Input::Acks { session, acks }).await?,
            ToController::Event(event) => {
                if let EventBody::Usage(report) = &event.event.body {
                    let flows = report.through_gateway.len().max(report.direct.len());
                    if flows > USAGE_FLOWS_MAX {
                        let text = format!("a usage report with {flows} flows: at most {USAGE_FLOWS_MAX}");
                        return Err(Error::Peer(text));
                    }
                }
                if let EventBody::Health(report) = &event.event.body
                    && let Some(problem) = report.problem()
                {
                    return Err(Error::Peer(format!("a report of its health is refused: {problem}")));
                }
                if let EventBody::PacketIn(report) = &event.event.body
                    && let Some(problem) = report.problem()
                {
                    return Err(Error::Peer(format!("a report of packets is refused: {problem}")));
                }
                if let EventBody::Report(report) = &event.event.body
                    && let Some(problem) = report.problem()
                {
                    return Err(Error::Peer(format!(
                        "a report of plane {} is refused: {problem}",
                        report.plane
                    )));
                }
                if let EventBody::Conduct(report) = &event.event.body
                    && let Some(problem) = report.problem()
                {
                    return Err(Error::Peer(format!(
                        "a report of a controller's conduct is refused: {problem}"
                    )));
                }
                // Every replica hears of it, and one orders it. Whose it is says its signature, and not the session.
                handle.shared.hear(event, &source);
            }
            ToController::Answer { id, answer } => {
                handle.shared.sessions.answered(actuator, session, id, answer)
            }
            ToController::Pong { .. } => {
                // Who led when the session was opened may have ended before it was ordered.
                if noted.elapsed() >= PROTOCOL_NOTED_AGAIN {
                    noted = Instant::now();
                    note_protocol(handle, peer);
                }
            }
            ToController::Renew { csr_pem } => {
                let answer = renew(handle, (actuator, &peer.identity), &csr_pem, peer.renewer);
                handle.shared.sessions.send(actuator, session, answer);
            }
            ToController::Rotate { rotation, csr_pem } => {
                let answer = asks(handle, peer).rotate(rotation, &csr_pem).await;
                handle.shared.sessions.send(actuator, session, answer);
            }
            ToController::Settle { key, by_key } => {
                let answer = asks(handle, peer).settle(key, by_key).await;
                handle.shared.sessions.send(actuator, session, answer);
            }
        }
    }
}

/// How long a controller waits before it says once more which protocol a peer speaks.
const PROTOCOL_NOTED_AGAIN: Duration = Duration::from_secs(20);

/// Orders which protocol an actuator speaks, where that is not what is known: so it is told what it can read, and no more.
fn note_protocol(handle: &ControllerHandle, peer: &Peer<'_>) {
    let published = handle.published();
    let known = published.store.get(SPEAKS_TABLE, peer.actuator.as_str().as_bytes());
    let known = known.and_then(|cell| decode(&cell.value).ok()).unwrap_or(PROTOCOL_MIN);
    let orders = handle.leads() || handle.orders_everywhere();
    if orders && known != peer.protocol && published.joined.contains_key(peer.actuator) {
        let (name, protocol) = (peer.actuator.clone(), peer.protocol);
        handle.shared.offer(EventBody::Speaks { name, protocol });
    }
}

fn asks<'a>(handle: &'a ControllerHandle, peer: &Peer<'a>) -> Asks<'a> {
    Asks { handle, actuator: peer.actuator, shown: peer.shown, renewer: peer.renewer }
}

/// Writes what is queued, and pings, but nothing before the first queued frame, which is the welcome.
/// A peer that does not take a frame for `dead` is gone.
async fn write<S: AsyncWrite>(
    mut queue: mpsc::Receiver<ToActuator>,
    mut writer: WriteHalf<S>,
    ping: Duration,
    dead: Duration,
) -> Result<(), Error> {
    let mut pings = interval(ping);
    let mut id = 0;
    let mut welcomed = false;
    loop {
        let frame = tokio::select! {
            frame = queue.recv() => match frame {
                Some(frame) => frame,
                None => return Ok(()),
            },
            _ = pings.tick(), if welcomed => {
                id += 1;
                ToActuator::Ping { id }
            }
        };
        welcomed = true;
        let wrote = timeout(dead, write_frame(&mut writer, &frame)).await;
        wrote.map_err(|_| Error::Peer(format!("nothing could be written for {} ms", dead.as_millis())))??;
    }
}
