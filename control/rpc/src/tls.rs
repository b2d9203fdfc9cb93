//! TLS under gRPC: with rustls configurations that somebody else makes, HTTP/2 added.

use rustls::CertificateError;
use rustls::pki_types::UnixTime;
use std::net::SocketAddr;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::mpsc;
use tokio_rustls::TlsAcceptor;
use tonic::transport::server::Connected;
use weir_admission::{Door, Guarded, Place};

/// What HTTP/2 is called in a handshake.
pub const ALPN: &[u8] = b"h2";
/// Connections that wait to be served.
const ACCEPTED_MAX: usize = 128;

/// Who is at the other end of a connection.
#[derive(Clone, Debug)]
pub struct Peer {
    /// Its address.
    pub address: SocketAddr,
    /// Its certificate (DER), when it showed one; TLS has verified it.
    pub certificate: Option<Vec<u8>>,
    /// Its place at the door: it is a stranger until a call says who asks.
    pub place: Place,
}

/// A connection, with TLS or without.
pub enum Connection {
    /// Without.
    Plain(Guarded<TcpStream>, Peer),
    /// With.
    Tls(Box<tokio_rustls::server::TlsStream<Guarded<TcpStream>>>, Peer),
}

impl Connected for Connection {
    type ConnectInfo = Peer;

    fn connect_info(&self) -> Peer {
        match self {
            Connection::Plain(_, peer) | Connection::Tls(_, peer) => peer.clone(),
        }
    }
}

impl AsyncRead for Connection {
    fn poll_read(
        self: Pin<&mut Self>,
        context: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<std::io::Result<()>> {
        match self.get_mut() {
            Connection::Plain(stream, _) => Pin::new(stream).poll_read(context, buffer),
            Connection::Tls(stream, _) => Pin::new(stream).poll_read(context, buffer),
        }
    }
}

impl AsyncWrite for Connection {
    fn poll_write(
        self: Pin<&mut Self>,
        context: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<std::io::Result<usize>> {
        match self.get_mut() {
            Connection::Plain(stream, _) => Pin::new(stream).poll_write(context, bytes),
            Connection::Tls(stream, _) => Pin::new(stream).poll_write(context, bytes),
        }
    }

    fn poll_flush(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<std::io::Result<()>> {
        match self.get_mut() {
            Connection::Plain(stream, _) => Pin::new(stream).poll_flush(context),
            Connection::Tls(stream, _) => Pin::new(stream).poll_flush(context),
        }
    }

    fn poll_shutdown(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<std::io::Result<()>> {
        match self.get_mut() {
            Connection::Plain(stream, _) => Pin::new(stream).poll_shutdown(context),
            Connection::Tls(stream, _) => Pin::new(stream).poll_shutdown(context),
        }
    }
}

/// Accepts connections through a door; a slow or failing handshake holds up nobody else. Ends when the receiver is dropped.
pub(crate) fn accept(
    listener: TcpListener,
    tls: Option<Arc<rustls::ServerConfig>>,
    door: Arc<Door>,
) -> mpsc::Receiver<std::io::Result<Connection>> {
    let (sender, accepted) = mpsc::channel(ACCEPTED_MAX);
    let acceptor = tls.map(|config| {
        let mut config = (*config).clone();
        config.alpn_protocols = vec![ALPN.to_vec()];
        TlsAcceptor::from(Arc::new(config))
    });
    tokio::spawn(async move {
        loop {
            let (stream, address) = tokio::select! {
                accepted = weir_admission::accept(&listener, &door) => accepted,
                () = sender.closed() => return,
            };
            let (acceptor, sender) = (acceptor.clone(), sender.clone());
            tokio::spawn(async move {
                match shake(stream, address, acceptor).await {
                    Ok(connection) => drop(sender.send(Ok(connection)).await),
                    Err(error) => tracing::debug!(%address, %error, "a TLS handshake failed"),
                }
            });
        }
    });
    accepted
}

/// What a person is told of an error below which TLS found a certificate out of its time; nothing for other errors.
pub fn clock_words(error: &(dyn std::error::Error + 'static)) -> Option<String> {
    let days = |from: UnixTime, to: UnixTime| to.as_secs().saturating_sub(from.as_secs()) / 86_400;
    let what = match tls_error(error)? {
        rustls::Error::InvalidCertificate(CertificateError::NotValidYetContext { time, not_before }) => {
            format!("is not valid yet, for {} days", days(*time, *not_before))
        }
        rustls::Error::InvalidCertificate(CertificateError::ExpiredContext { time, not_after }) => {
            format!("is over, since {} days", days(*not_after, *time))
        }
        rustls::Error::InvalidCertificate(CertificateError::NotValidYet) => "is not valid yet".to_owned(),
        rustls::Error::InvalidCertificate(CertificateError::Expired) => "is over".to_owned(),
        _ => return None,
    };
    Some(format!(
        "its certificate {what} by the clock of this machine: set this clock right, or the server's"
    ))
}

/// What TLS said, somewhere below an error.
fn tls_error<'a>(error: &'a (dyn std::error::Error + 'static)) -> Option<&'a rustls::Error> {
    let mut cause = Some(error);
    while let Some(one) = cause {
        let inner = one.downcast_ref::<std::io::Error>().and_then(std::io::Error::get_ref);
        let inner = inner.and_then(|inner| inner.downcast_ref());
        if let Some(found) = one.downcast_ref().or(inner) {
            return Some(found);
        }
        cause = one.source();
    }
    None
}

async fn shake(
    stream: Guarded<TcpStream>,
    address: SocketAddr,
    acceptor: Option<TlsAcceptor>,
) -> std::io::Result<Connection> {
    let place = stream.place().clone();
    let Some(acceptor) = acceptor else {
        place.shaken();
        return Ok(Connection::Plain(stream, Peer { address, certificate: None, place }));
    };
    let stream = acceptor.accept(stream).await?;
    place.shaken();
    let chain = stream.get_ref().1.peer_certificates();
    let certificate = chain.and_then(|chain| chain.first()).map(|der| der.to_vec());
    Ok(Connection::Tls(Box::new(stream), Peer { address, certificate, place }))
}
