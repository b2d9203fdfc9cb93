//! TLS under gRPC: with rustls configurations that somebody else makes, HTTP/2 added.

use std::net::SocketAddr;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Duration;
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::{Semaphore, mpsc};
use tokio_rustls::TlsAcceptor;
use tonic::transport::server::Connected;

/// What HTTP/2 is called in a handshake.
pub const ALPN: &[u8] = b"h2";
/// Most handshakes at a time.
const HANDSHAKES_MAX: usize = 128;
/// A handshake may take so long.
const HANDSHAKE_TIMEOUT: Duration = Duration::from_secs(10);

/// Who is at the other end of a connection.
#[derive(Clone, Debug)]
pub struct Peer {
    /// Its address.
    pub address: SocketAddr,
    /// Its certificate (DER), when it showed one; TLS has verified it.
    pub certificate: Option<Vec<u8>>,
}

/// A connection, with TLS or without.
pub enum Connection {
    /// Without.
    Plain(TcpStream, Peer),
    /// With.
    Tls(Box<tokio_rustls::server::TlsStream<TcpStream>>, Peer),
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

/// Accepts connections; a slow or failing handshake holds up nobody else. Ends when the receiver is dropped.
pub(crate) fn accept(
    listener: TcpListener,
    tls: Option<Arc<rustls::ServerConfig>>,
) -> mpsc::Receiver<std::io::Result<Connection>> {
    let (sender, accepted) = mpsc::channel(HANDSHAKES_MAX);
    let acceptor = tls.map(|config| {
        let mut config = (*config).clone();
        config.alpn_protocols = vec![ALPN.to_vec()];
        TlsAcceptor::from(Arc::new(config))
    });
    let places = Arc::new(Semaphore::new(HANDSHAKES_MAX));
    tokio::spawn(async move {
        while let Ok(place) = places.clone().acquire_owned().await {
            let stream = tokio::select! {
                stream = listener.accept() => stream,
                () = sender.closed() => return,
            };
            let (stream, address) = match stream {
                Ok(accepted) => accepted,
                Err(error) => {
                    tracing::warn!(%error, "a connection could not be accepted");
                    tokio::time::sleep(Duration::from_millis(50)).await;
                    continue;
                }
            };
            let (acceptor, sender) = (acceptor.clone(), sender.clone());
            tokio::spawn(async move {
                match tokio::time::timeout(HANDSHAKE_TIMEOUT, shake(stream, address, acceptor)).await {
                    Ok(Ok(connection)) => drop(sender.send(Ok(connection)).await),
                    Ok(Err(error)) => tracing::debug!(%address, %error, "a TLS handshake failed"),
                    Err(_) => tracing::debug!(%address, "a TLS handshake took too long"),
                }
                drop(place);
            });
        }
    });
    accepted
}

async fn shake(
    stream: TcpStream,
    address: SocketAddr,
    acceptor: Option<TlsAcceptor>,
) -> std::io::Result<Connection> {
    stream.set_nodelay(true)?;
    let Some(acceptor) = acceptor else {
        return Ok(Connection::Plain(stream, Peer { address, certificate: None }));
    };
    let stream = acceptor.accept(stream).await?;
    let chain = stream.get_ref().1.peer_certificates();
    let certificate = chain.and_then(|chain| chain.first()).map(|der| der.to_vec());
    Ok(Connection::Tls(Box::new(stream), Peer { address, certificate }))
}
