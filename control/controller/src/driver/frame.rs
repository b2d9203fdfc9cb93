//! Frames of the session protocol on async streams: little-endian `u32` length, then postcard.

use crate::Error;
use serde::Serialize;
use serde::de::DeserializeOwned;
use std::sync::Arc;
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt};
use weir_base::codec::{CodecError, decode, encode_frame, frame_length};

/// Reads one frame. Not cancel-safe: a reader that is dropped inside a frame loses its place.
///
/// # Errors
/// [`Error::Frame`]: `Closed` when the stream ends between frames, `Io` when it ends inside one,
/// `TooLong` before the body is read, `Malformed` or `Trailing`.
pub async fn read_frame<T: DeserializeOwned>(stream: &mut (impl AsyncRead + Unpin)) -> Result<T, Error> {
    let mut header = [0_u8; 4];
    let mut filled = 0;
    while filled < header.len() {
        match stream.read(&mut header[filled..]).await.map_err(io)? {
            0 if filled == 0 => return Err(CodecError::Closed.into()),
            0 => return Err(io(std::io::ErrorKind::UnexpectedEof.into())),
            read => filled += read,
        }
    }
    let length = frame_length(header)?;
    // Grows with what really comes, not with what the header promises.
    let mut body = Vec::new();
    let read = (&mut *stream).take(length as u64).read_to_end(&mut body).await.map_err(io)?;
    if read < length {
        return Err(io(std::io::ErrorKind::UnexpectedEof.into()));
    }
    Ok(decode(&body)?)
}

/// Writes one frame and flushes it.
///
/// # Errors
/// [`Error::Frame`]: `TooLong` or `Io`.
pub async fn write_frame<T: Serialize>(
    stream: &mut (impl AsyncWrite + Unpin),
    value: &T,
) -> Result<(), Error> {
    stream.write_all(&encode_frame(value)?).await.map_err(io)?;
    stream.flush().await.map_err(io)
}

fn io(error: std::io::Error) -> Error {
    Error::Frame(Arc::new(CodecError::Io(error)))
}
