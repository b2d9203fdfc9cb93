//! Frames of `weir_base::codec` on asynchronous streams.

use serde::{Serialize, de::DeserializeOwned};
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt};
use weir_base::codec::{CodecError, decode, encode_frame, frame_length};

/// Reads one frame.
///
/// # Errors
/// `Closed` when the stream ends between frames; all else of the codec.
pub async fn read_frame<T: DeserializeOwned>(stream: &mut (impl AsyncRead + Unpin)) -> Result<T, CodecError> {
    Ok(read_counted(stream).await?.0)
}

/// Reads one frame; gives its length too, bytes.
///
/// # Errors
/// As of [`read_frame`].
pub async fn read_counted<T: DeserializeOwned>(
    stream: &mut (impl AsyncRead + Unpin),
) -> Result<(T, usize), CodecError> {
    let mut header = [0_u8; 4];
    let mut filled = 0;
    while filled < header.len() {
        match stream.read(&mut header[filled..]).await? {
            0 if filled == 0 => return Err(CodecError::Closed),
            0 => return Err(CodecError::Io(std::io::ErrorKind::UnexpectedEof.into())),
            read => filled += read,
        }
    }
    let length = frame_length(header)?;
    // The buffer grows with what arrives: a peer that only announces gets no memory.
    let mut body = Vec::with_capacity(length.min(64 * 1024));
    stream.take(length as u64).read_to_end(&mut body).await?;
    if body.len() < length {
        return Err(CodecError::Io(std::io::ErrorKind::UnexpectedEof.into()));
    }
    Ok((decode(&body)?, length))
}

/// Writes one frame and does not flush.
///
/// # Errors
/// `TooLong` or `Io`.
pub async fn write_frame<T: Serialize>(
    stream: &mut (impl AsyncWrite + Unpin),
    value: &T,
) -> Result<(), CodecError> {
    stream.write_all(&encode_frame(value)?).await?;
    Ok(())
}
