//! TLS for the API: server side of axum, and how a peer is known by its certificate.

use crate::pki::ADMIN_DNS_NAME;
use axum::extract::connect_info::Connected;
use axum::serve::{IncomingStream, Listener};
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::mpsc;
use tokio_rustls::TlsAcceptor;
use tokio_rustls::server::TlsStream;
use x509_parser::extensions::GeneralName;

/// Most connections in the middle of a handshake.
pub const HANDSHAKES_MAX: usize = 128;
/// A handshake may take so long.
pub const HANDSHAKE_TIMEOUT: Duration = Duration::from_secs(10);

/// Who is at the other end of a connection.
#[derive(Clone, Debug)]
pub struct Peer {
    /// Its address.
    pub address: SocketAddr,
    /// Whether its certificate is an administrator's.
    pub is_admin: bool,
    /// The first name in its certificate, when it showed one.
    pub name: Option<String>,
    /// Its certificate (DER), when it showed one.
    pub certificate: Option<Arc<[u8]>>,
}

/// Accepts TLS connections; a slow or failing handshake holds up nobody else.
#[derive(Debug)]
pub struct TlsListener {
    accepted: mpsc::Receiver<(TlsStream<TcpStream>, SocketAddr)>,
    address: SocketAddr,
}

impl TlsListener {
    /// Accepts on a bound socket with a server configuration. Runs on the current runtime until
    /// the listener is dropped.
    ///
    /// # Errors
    /// When the socket has no address.
    pub fn new(listener: TcpListener, config: Arc<rustls::ServerConfig>) -> std::io::Result<TlsListener> {
        let address = listener.local_addr()?;
        let mut config = (*config).clone();
        // HTTP/2 for gRPC; who offers nothing gets HTTP/1.1.
        config.alpn_protocols = vec![b"h2".to_vec(), b"http/1.1".to_vec()];
        let acceptor = TlsAcceptor::from(Arc::new(config));
        let (sender, accepted) = mpsc::channel(HANDSHAKES_MAX);
        let places = Arc::new(tokio::sync::Semaphore::new(HANDSHAKES_MAX));
        tokio::spawn(async move {
            while let Ok(place) = places.clone().acquire_owned().await {
                let (stream, from) = match listener.accept().await {
                    Ok(accepted) => accepted,
                    Err(error) => {
                        tracing::warn!(%error, "a connection could not be accepted");
                        tokio::time::sleep(Duration::from_millis(50)).await;
                        continue;
                    }
                };
                if sender.is_closed() {
                    return;
                }
                // Else the end of an answer waits until the peer, which delays that, acknowledges the beginning.
                if let Err(error) = stream.set_nodelay(true) {
                    tracing::debug!(%from, %error, "a connection was lost");
                    continue;
                }
                let (acceptor, sender) = (acceptor.clone(), sender.clone());
                tokio::spawn(async move {
                    match tokio::time::timeout(HANDSHAKE_TIMEOUT, acceptor.accept(stream)).await {
                        Ok(Ok(stream)) => drop(sender.send((stream, from)).await),
                        Ok(Err(error)) => tracing::debug!(%from, %error, "a TLS handshake failed"),
                        Err(_) => tracing::debug!(%from, "a TLS handshake took too long"),
                    }
                    drop(place);
                });
            }
        });
        Ok(TlsListener { accepted, address })
    }
}

impl Listener for TlsListener {
    type Io = TlsStream<TcpStream>;
    type Addr = SocketAddr;

    async fn accept(&mut self) -> (Self::Io, SocketAddr) {
        match self.accepted.recv().await {
            Some(accepted) => accepted,
            None => std::future::pending().await,
        }
    }

    fn local_addr(&self) -> std::io::Result<SocketAddr> {
        Ok(self.address)
    }
}

impl Connected<IncomingStream<'_, TlsListener>> for Peer {
    fn connect_info(stream: IncomingStream<'_, TlsListener>) -> Peer {
        let (_, connection) = stream.io().get_ref();
        let shown = connection.peer_certificates().and_then(|chain| chain.first());
        let names = shown.map(|der| dns_names(der)).unwrap_or_default();
        let is_admin = names.iter().any(|name| name == ADMIN_DNS_NAME);
        let certificate = shown.map(|der| Arc::from(der.as_ref()));
        Peer { address: *stream.remote_addr(), is_admin, name: names.into_iter().next(), certificate }
    }
}

/// The DNS names of a certificate; none when it cannot be read.
pub fn dns_names(der: &[u8]) -> Vec<String> {
    let Ok((_, certificate)) = x509_parser::parse_x509_certificate(der) else { return Vec::new() };
    let Ok(Some(names)) = certificate.subject_alternative_name() else { return Vec::new() };
    names
        .value
        .general_names
        .iter()
        .filter_map(|name| match name {
            GeneralName::DNSName(name) => Some((*name).to_string()),
            _ => None,
        })
        .collect()
}
