//! Serving HTTP over TLS: through a door, with limits on what a request's head may be.
//!
//! A connection is a stranger's until its certificate, or the token of a request on it, says who is there. The head of a request is
//! judged before a byte of its body is read; see [`crate::server`].

use crate::pki::Now;
use crate::tls::Peer;
use axum::Router;
use axum::extract::ConnectInfo;
use axum::http::Request;
use axum::serve::Listener;
use hyper_util::rt::{TokioExecutor, TokioIo, TokioTimer};
use hyper_util::server::conn::auto::Builder;
use hyper_util::service::TowerToHyperService;
use std::convert::Infallible;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;
use tokio::net::{TcpListener, TcpStream};
use tokio_rustls::TlsAcceptor;
use tokio_rustls::server::TlsStream;
use tower::ServiceExt as _;
use weir_admission::{Door, Guarded, Limits};

/// A head comes whole within this, and a connection of HTTP/1 without a request is closed after it.
pub const HEAD_TIMEOUT: Duration = Duration::from_secs(60);
/// Most requests at a time on one connection of HTTP/2.
pub const STREAMS_MAX: u32 = 128;
/// Most header fields that are read; more than [`crate::server::HEADERS_MAX`], which is refused with a reason.
const HEADERS_READ_MAX: usize = 256;
/// Most bytes of header fields that are read in HTTP/2; more than [`crate::server::HEAD_BYTES_MAX`], for the same reason.
const HEAD_READ_BYTES_MAX: u32 = 128 * 1024;
/// How often a silent connection of HTTP/2 is asked whether it lives, and how long its answer may take.
const ALIVE: Duration = Duration::from_secs(30);

/// Serves a router for ever. A connection ends when the certificate that it came with is over by `now`.
pub async fn serve(
    listener: TcpListener,
    tls: &rustls::ServerConfig,
    now: Arc<Now>,
    door: &Arc<Door>,
    service: Router,
) -> Infallible {
    let mut config = tls.clone();
    // HTTP/2 for gRPC; who offers nothing gets HTTP/1.1.
    config.alpn_protocols = vec![b"h2".to_vec(), b"http/1.1".to_vec()];
    let acceptor = TlsAcceptor::from(Arc::new(config));
    loop {
        let (stream, from) = weir_admission::accept(&listener, door).await;
        let (acceptor, now, service) = (acceptor.clone(), now.clone(), service.clone());
        tokio::spawn(async move {
            let place = stream.place().clone();
            let stream = match acceptor.accept(stream).await {
                Ok(stream) => stream,
                Err(error) => return tracing::debug!(%from, %error, "a TLS handshake failed"),
            };
            place.shaken();
            let shown = stream.get_ref().1.peer_certificates().and_then(|chain| chain.first());
            let peer = Peer::of(from, shown.map(|der| der.as_ref()));
            if let Some(name) = peer.principal() {
                if let Err(full) = place.admit(&name) {
                    return tracing::info!(%from, %full, "a connection has no place");
                }
                if let Some(at) = peer.over_at(now()) {
                    place.until(at);
                }
            }
            talk(stream, peer, service).await;
        });
    }
}

async fn talk(stream: TlsStream<Guarded<TcpStream>>, peer: Peer, service: Router) {
    let (from, place) = (peer.address, stream.get_ref().0.place().clone());
    let service = service.map_request(move |mut request: Request<hyper::body::Incoming>| {
        request.extensions_mut().insert(ConnectInfo(peer.clone()));
        request.extensions_mut().insert(place.clone());
        request
    });
    let mut builder = Builder::new(TokioExecutor::new());
    builder.http1().timer(TokioTimer::new()).header_read_timeout(HEAD_TIMEOUT).max_headers(HEADERS_READ_MAX);
    builder
        .http2()
        .timer(TokioTimer::new())
        .max_concurrent_streams(STREAMS_MAX)
        .max_header_list_size(HEAD_READ_BYTES_MAX)
        .keep_alive_interval(ALIVE)
        .keep_alive_timeout(ALIVE);
    let served = builder.serve_connection(TokioIo::new(stream), TowerToHyperService::new(service)).await;
    if let Err(error) = served {
        tracing::debug!(%from, %error, "a connection ended");
    }
}

/// Accepts without TLS through a door of its own, for a status that shows no secret: nobody is known there, so each connection has the
/// time of a stranger.
#[derive(Debug)]
pub struct Plain {
    listener: TcpListener,
    door: Arc<Door>,
}

impl Plain {
    /// On a bound socket.
    pub fn new(listener: TcpListener) -> Plain {
        let limits = Limits { strangers_max: 64, strangers_per_address_max: 16, ..Limits::default() };
        Plain { listener, door: Door::new("status", limits) }
    }
}

impl Listener for Plain {
    type Io = Guarded<TcpStream>;
    type Addr = SocketAddr;

    async fn accept(&mut self) -> (Self::Io, SocketAddr) {
        let (stream, from) = weir_admission::accept(&self.listener, &self.door).await;
        stream.place().shaken();
        (stream, from)
    }

    fn local_addr(&self) -> std::io::Result<SocketAddr> {
        self.listener.local_addr()
    }
}
