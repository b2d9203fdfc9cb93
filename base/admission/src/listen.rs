//! Accepting through a door.

use crate::door::Door;
use crate::guard::Guarded;
use rustix::net::sockopt;
use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;
use tokio::net::{TcpListener, TcpStream};

/// How long nobody is accepted after an error, such as too many open files.
pub const ACCEPT_REST: Duration = Duration::from_millis(50);

/// A connection on which nothing comes is asked after this whether its end is there, again after [`ALIVE_AGAIN`], and ended after
/// [`ALIVE_TIMES`] without an answer: a machine that is gone holds no place for ever.
const ALIVE_IDLE: Duration = Duration::from_secs(60);
/// See [`ALIVE_IDLE`].
const ALIVE_AGAIN: Duration = Duration::from_secs(20);
/// See [`ALIVE_IDLE`].
const ALIVE_TIMES: u32 = 3;

fn prepare(stream: &TcpStream) -> std::io::Result<()> {
    // Else the end of an answer waits until the peer, which delays that, acknowledges the beginning.
    stream.set_nodelay(true)?;
    sockopt::set_socket_keepalive(stream, true)?;
    sockopt::set_tcp_keepidle(stream, ALIVE_IDLE)?;
    sockopt::set_tcp_keepintvl(stream, ALIVE_AGAIN)?;
    sockopt::set_tcp_keepcnt(stream, ALIVE_TIMES)?;
    Ok(())
}

/// The next connection that gets a place.
pub async fn accept(listener: &TcpListener, door: &Arc<Door>) -> (Guarded<TcpStream>, SocketAddr) {
    loop {
        let (stream, from) = match listener.accept().await {
            Ok(accepted) => accepted,
            Err(error) => {
                door.counters.accept_failed.fetch_add(1, Ordering::Relaxed);
                tracing::warn!(door = door.name(), %error, "a connection could not be accepted");
                tokio::time::sleep(ACCEPT_REST).await;
                continue;
            }
        };
        if let Err(error) = prepare(&stream) {
            tracing::debug!(%from, %error, "a connection was lost");
            continue;
        }
        match door.enter(from.ip()) {
            Some(place) => return (Guarded::new(stream, place), from),
            // Those that must end first do so in other tasks.
            None => tokio::task::yield_now().await,
        }
    }
}
