//! A connection to a server that may send anything: what it begins to say is refused where no answer is so long, and its end is an end.

use nfs3_client::io::{AsyncRead, AsyncWrite};
use nfs3_client::net::Connector;
use std::io::{Error, ErrorKind, Result};
use std::net::SocketAddr;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpSocket, TcpStream};

/// Longest answer, bytes: more than the longest READ, and than a listing of a server that gives more than was asked for.
pub(super) const ANSWER_BYTES_MAX: usize = 4 << 20;

/// A connection.
pub(super) struct Line(pub(super) TcpStream);

/// Makes connections.
pub(super) struct Lines;

impl AsyncRead for Line {
    async fn async_read(&mut self, to: &mut [u8]) -> Result<usize> {
        self.async_read_exact(to).await.map(|()| to.len())
    }

    /// The client of the protocol has room for as much as an answer says that it will be, which is nothing until it is written.
    async fn async_read_exact(&mut self, to: &mut [u8]) -> Result<()> {
        if to.len() > ANSWER_BYTES_MAX {
            let reason = format!(
                "the server begins an answer of {} bytes; the longest one that is taken has {ANSWER_BYTES_MAX}",
                to.len()
            );
            return Err(Error::new(ErrorKind::InvalidData, reason));
        }
        self.0.read_exact(to).await.map(drop)
    }
}

impl AsyncWrite for Line {
    async fn async_write(&mut self, from: &[u8]) -> Result<usize> {
        self.0.write(from).await
    }

    async fn async_write_all(&mut self, from: &[u8]) -> Result<()> {
        self.0.write_all(from).await
    }
}

impl Connector for Lines {
    type Connection = Line;

    async fn connect(&self, to: SocketAddr) -> Result<Line> {
        TcpStream::connect(to).await.map(Line)
    }

    async fn connect_with_port(&self, to: SocketAddr, port: u16) -> Result<Line> {
        let socket = TcpSocket::new_v4()?;
        socket.bind(([0, 0, 0, 0], port).into())?;
        socket.connect(to).await.map(Line)
    }
}
