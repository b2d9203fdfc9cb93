//! A stream that ends when its place does.

use crate::door::{Bound, Place};
use std::io;
use std::pin::Pin;
use std::task::{Context, Poll, ready};
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::time::{Instant, Sleep};

/// A stream held to a [`Place`]: it fails when the place is gone, or a time of it is over. It stands below TLS, so that a handshake is
/// held to it as well.
#[derive(Debug)]
pub struct Guarded<S> {
    stream: S,
    place: Place,
    /// Of who reads and of who writes: they may be two tasks.
    timers: [Option<Pin<Box<Sleep>>>; 2],
}

const READS: usize = 0;
const WRITES: usize = 1;

impl<S> Guarded<S> {
    /// Holds a stream to a place.
    pub fn new(stream: S, place: Place) -> Guarded<S> {
        Guarded { stream, place, timers: [None, None] }
    }

    /// Its place.
    pub fn place(&self) -> &Place {
        &self.place
    }

    /// The stream.
    pub fn get_ref(&self) -> &S {
        &self.stream
    }

    /// Fails when the connection is to end; wakes the task when that comes.
    fn check(&mut self, side: usize, context: &mut Context<'_>) -> io::Result<()> {
        self.place.watch(side, context.waker());
        if self.place.ends() {
            return Err(io::Error::new(
                io::ErrorKind::ConnectionAborted,
                "this connection has no place any more",
            ));
        }
        loop {
            let bound = self.place.bound();
            let Some(at) = bound.at() else {
                self.timers[side] = None;
                return Ok(());
            };
            let at = Instant::from_std(at);
            let timer = self.timers[side].get_or_insert_with(|| Box::pin(tokio::time::sleep_until(at)));
            if timer.deadline() != at {
                timer.as_mut().reset(at);
            }
            if timer.as_mut().poll(context).is_pending() {
                return Ok(());
            }
            // It may have gone a step further meanwhile.
            if self.place.bound() == bound {
                return Err(self.late(bound));
            }
        }
    }

    fn late(&self, bound: Bound) -> io::Error {
        io::Error::new(io::ErrorKind::TimedOut, self.place.late(bound))
    }
}

impl<S: AsyncRead + Unpin> AsyncRead for Guarded<S> {
    fn poll_read(
        self: Pin<&mut Self>,
        context: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        let guarded = self.get_mut();
        guarded.check(READS, context)?;
        let before = buffer.filled().len();
        ready!(Pin::new(&mut guarded.stream).poll_read(context, buffer))?;
        if buffer.filled().len() > before {
            guarded.place.spoke();
        }
        Poll::Ready(Ok(()))
    }
}

impl<S: AsyncWrite + Unpin> AsyncWrite for Guarded<S> {
    fn poll_write(self: Pin<&mut Self>, context: &mut Context<'_>, bytes: &[u8]) -> Poll<io::Result<usize>> {
        let guarded = self.get_mut();
        guarded.check(WRITES, context)?;
        Pin::new(&mut guarded.stream).poll_write(context, bytes)
    }

    fn poll_write_vectored(
        self: Pin<&mut Self>,
        context: &mut Context<'_>,
        parts: &[io::IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        let guarded = self.get_mut();
        guarded.check(WRITES, context)?;
        Pin::new(&mut guarded.stream).poll_write_vectored(context, parts)
    }

    fn is_write_vectored(&self) -> bool {
        self.stream.is_write_vectored()
    }

    fn poll_flush(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        let guarded = self.get_mut();
        guarded.check(WRITES, context)?;
        Pin::new(&mut guarded.stream).poll_flush(context)
    }

    fn poll_shutdown(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        // Saying good-bye is nothing that a place is needed for, but no reason to stay.
        let guarded = self.get_mut();
        guarded.check(WRITES, context)?;
        Pin::new(&mut guarded.stream).poll_shutdown(context)
    }
}
