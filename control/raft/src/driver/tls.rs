//! Frames over TCP with mutual TLS: each a length of four bytes, little-endian, and that many bytes.
//!
//! A replica's certificate comes from the group's authority and carries the DNS name [`replica_name`] of its number, which no
//! other certificate of the authority has (actuators' names have no dot). Both ends check the other's.

use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use bytes::{BufMut, Bytes, BytesMut};
use futures_util::future::BoxFuture;
use rustls::pki_types::{CertificateDer, PrivateKeyDer, ServerName};
use rustls::server::WebPkiClientVerifier;
use rustls::{ClientConfig, RootCertStore, ServerConfig, version::TLS13};
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::mpsc;
use tokio::time::timeout;
use tokio_rustls::{TlsAcceptor, TlsConnector};
use weir_admission::{Door, Guarded, Limits, Place};
use x509_parser::prelude::{FromDer, GeneralName, X509Certificate};

use super::Listener;
use crate::net::{Accepted, LINK_FRAMES_MAX, Lane, Link, Transport};
use crate::runtime::spawn;

/// How long connecting and the handshake may take.
const HANDSHAKE_TIMEOUT: Duration = Duration::from_secs(5);
/// Connections of others: a replica has some links, and a stranger has no business here.
const LIMITS: Limits = Limits {
    strangers_max: 64,
    strangers_per_address_max: 16,
    known_max: 512,
    known_per_name_max: 64,
    first_byte: Duration::from_secs(3),
    handshake: HANDSHAKE_TIMEOUT,
    stranger_life: HANDSHAKE_TIMEOUT,
};
/// Bytes that are gathered before they are written.
const GATHER_BYTES: usize = 256 << 10;

/// The DNS name in the certificate of replica `id`.
pub fn replica_name(id: u64) -> String {
    format!("replica-{id}.weir.internal")
}

fn replica_of(name: &str) -> Option<u64> {
    let id = name.strip_prefix("replica-")?.strip_suffix(".weir.internal")?.parse().ok()?;
    (replica_name(id) == name).then_some(id)
}

/// What a replica shows, and whom it trusts.
pub struct Identity {
    /// Its certificate, and what leads to the authority.
    pub chain: Vec<CertificateDer<'static>>,
    /// Its key.
    pub key: PrivateKeyDer<'static>,
    /// The group's authority.
    pub authority: CertificateDer<'static>,
}

fn config_error(error: impl std::fmt::Display) -> io::Error {
    io::Error::new(
        io::ErrorKind::InvalidInput,
        format!("TLS does not take the replica's certificates: {error}"),
    )
}

impl Identity {
    fn roots(&self) -> io::Result<Arc<RootCertStore>> {
        let mut roots = RootCertStore::empty();
        roots.add(self.authority.clone()).map_err(config_error)?;
        Ok(Arc::new(roots))
    }

    fn client(&self) -> io::Result<Arc<ClientConfig>> {
        let provider = Arc::new(rustls::crypto::ring::default_provider());
        let config = ClientConfig::builder_with_provider(provider)
            .with_protocol_versions(&[&TLS13])
            .map_err(config_error)?
            .with_root_certificates(self.roots()?)
            .with_client_auth_cert(self.chain.clone(), self.key.clone_key())
            .map_err(config_error)?;
        Ok(Arc::new(config))
    }

    fn server(&self) -> io::Result<Arc<ServerConfig>> {
        let provider = Arc::new(rustls::crypto::ring::default_provider());
        let verifier = WebPkiClientVerifier::builder_with_provider(self.roots()?, Arc::clone(&provider))
            .build()
            .map_err(config_error)?;
        let config = ServerConfig::builder_with_provider(provider)
            .with_protocol_versions(&[&TLS13])
            .map_err(config_error)?
            .with_client_cert_verifier(verifier)
            .with_single_cert(self.chain.clone(), self.key.clone_key())
            .map_err(config_error)?;
        Ok(Arc::new(config))
    }
}

/// Which replica a certificate names.
fn peer_of(chain: Option<&[CertificateDer<'_>]>) -> io::Result<u64> {
    let bad = |what: &str| io::Error::new(io::ErrorKind::PermissionDenied, what.to_owned());
    let leaf = chain.and_then(<[_]>::first).ok_or_else(|| bad("it shows no certificate"))?;
    let (_, certificate) =
        X509Certificate::from_der(leaf).map_err(|_| bad("its certificate cannot be read"))?;
    let names = certificate.subject_alternative_name().ok().flatten();
    let named = names.and_then(|names| {
        names.value.general_names.iter().find_map(|name| match name {
            GeneralName::DNSName(name) => replica_of(name),
            _ => None,
        })
    });
    named.ok_or_else(|| bad("its certificate is not that of a replica"))
}

async fn read_frames(
    mut stream: impl AsyncRead + Unpin,
    frame_bytes_max: usize,
    frames: mpsc::Sender<Bytes>,
) -> io::Result<()> {
    loop {
        let length = stream.read_u32_le().await? as usize;
        if length > frame_bytes_max {
            let what = format!("a frame of {length} bytes; {frame_bytes_max} are allowed");
            return Err(io::Error::new(io::ErrorKind::InvalidData, what));
        }
        let mut frame = BytesMut::with_capacity(length).limit(length);
        while frame.has_remaining_mut() {
            if stream.read_buf(&mut frame).await? == 0 {
                return Err(io::ErrorKind::UnexpectedEof.into());
            }
        }
        if frames.send(frame.into_inner().freeze()).await.is_err() {
            return Ok(());
        }
    }
}

async fn write_frames(
    mut stream: impl AsyncWrite + Unpin,
    mut frames: mpsc::Receiver<Bytes>,
) -> io::Result<()> {
    let mut gathered = BytesMut::new();
    while let Some(first) = frames.recv().await {
        let mut next = Some(first);
        while let Some(frame) = next.take() {
            gathered.put_u32_le(frame.len() as u32);
            gathered.put_slice(&frame);
            if gathered.len() < GATHER_BYTES {
                next = frames.try_recv().ok();
            }
        }
        stream.write_all(&gathered).await?;
        stream.flush().await?;
        gathered.clear();
    }
    stream.shutdown().await
}

/// Runs a connection as a link. It ends when either half fails or is dropped.
fn link_over(stream: impl AsyncRead + AsyncWrite + Send + 'static, frame_bytes_max: usize) -> Link {
    let (reader, writer) = tokio::io::split(stream);
    let (outgoing, to_write) = mpsc::channel(LINK_FRAMES_MAX);
    let (read, incoming) = mpsc::channel(LINK_FRAMES_MAX);
    spawn(async move {
        let ended = tokio::select! {
            biased;
            ended = read_frames(reader, frame_bytes_max, read) => ended,
            ended = write_frames(writer, to_write) => ended,
        };
        if let Err(error) = ended {
            tracing::debug!(%error, "a link ended");
        }
    });
    Link { outgoing, incoming }
}

/// Opens links over TCP and TLS.
pub struct TlsTransport {
    connector: TlsConnector,
    frame_bytes_max: usize,
}

impl TlsTransport {
    /// A transport that shows `identity`. Frames may have `frame_bytes_max` bytes: the largest batch and 2 MiB.
    pub fn new(identity: &Identity, frame_bytes_max: usize) -> io::Result<TlsTransport> {
        Ok(TlsTransport { connector: TlsConnector::from(identity.client()?), frame_bytes_max })
    }
}

impl Transport for TlsTransport {
    fn connect(&self, to: u64, address: String, _lane: Lane) -> BoxFuture<'static, io::Result<Link>> {
        let (connector, frame_bytes_max) = (self.connector.clone(), self.frame_bytes_max);
        Box::pin(async move {
            let open = async {
                let name = ServerName::try_from(replica_name(to)).map_err(config_error)?;
                let stream = TcpStream::connect(&address).await?;
                stream.set_nodelay(true)?;
                connector.connect(name, stream).await
            };
            let late = |_| io::Error::new(io::ErrorKind::TimedOut, "no handshake in time");
            let stream = timeout(HANDSHAKE_TIMEOUT, open).await.map_err(late)??;
            Ok(link_over(stream, frame_bytes_max))
        })
    }
}

/// Counts of a listener.
#[derive(Debug, Default)]
pub struct ListenerCounters {
    /// Connections that failed before they were links.
    pub failed: AtomicU64,
}

/// Takes links over TCP and TLS.
pub struct TlsListener {
    listener: std::net::TcpListener,
    acceptor: TlsAcceptor,
    frame_bytes_max: usize,
    counters: Arc<ListenerCounters>,
    door: Arc<Door>,
}

impl TlsListener {
    /// Listens on `listener`, showing `identity`; only replicas with certificates of the same authority get in.
    pub fn new(
        listener: std::net::TcpListener,
        identity: &Identity,
        frame_bytes_max: usize,
    ) -> io::Result<TlsListener> {
        listener.set_nonblocking(true)?;
        let acceptor = TlsAcceptor::from(identity.server()?);
        let door = Door::new("replicas", LIMITS);
        Ok(TlsListener { listener, acceptor, frame_bytes_max, counters: Arc::default(), door })
    }

    /// The door that others come through.
    pub fn door(&self) -> Arc<Door> {
        Arc::clone(&self.door)
    }

    /// What is counted, also while it runs.
    pub fn counters(&self) -> Arc<ListenerCounters> {
        Arc::clone(&self.counters)
    }
}

impl Listener for TlsListener {
    fn listen(self: Box<Self>, links: mpsc::Sender<Accepted>) -> BoxFuture<'static, ()> {
        Box::pin(async move {
            let listener = match TcpListener::from_std(self.listener) {
                Ok(listener) => listener,
                Err(error) => {
                    tracing::error!(%error, "the listener for replicas cannot be used");
                    return;
                }
            };
            loop {
                let (stream, peer) = weir_admission::accept(&listener, &self.door).await;
                let (acceptor, limit, links) = (self.acceptor.clone(), self.frame_bytes_max, links.clone());
                let counters = Arc::clone(&self.counters);
                spawn(async move {
                    match accept(stream, &acceptor, limit).await {
                        Ok((accepted, _place)) => {
                            let incoming_end = accepted.link.outgoing.clone();
                            // The replica is gone; so is the link.
                            let _gone = links.send(accepted).await;
                            incoming_end.closed().await;
                        }
                        Err(error) => {
                            counters.failed.fetch_add(1, Ordering::Relaxed);
                            tracing::debug!(%peer, %error, "refused a connection");
                        }
                    }
                });
            }
        })
    }
}

async fn accept(
    stream: Guarded<TcpStream>,
    acceptor: &TlsAcceptor,
    frame_bytes_max: usize,
) -> io::Result<(Accepted, Place)> {
    let place = stream.place().clone();
    let stream = acceptor.accept(stream).await?;
    place.shaken();
    let from = peer_of(stream.get_ref().1.peer_certificates())?;
    place.admit(&replica_name(from)).map_err(io::Error::other)?;
    Ok((Accepted { from, link: link_over(stream, frame_bytes_max) }, place))
}
