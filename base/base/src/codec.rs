//! The wire codec: postcard (a specified, compact format) inside length-prefixed frames.
//!
//! Invariants: a decoder never allocates more than the frame it was given, refuses trailing bytes,
//! and refuses a frame longer than its limit before reading the body.

use crate::limits::FRAME_BYTES_MAX;
use serde::{Serialize, de::DeserializeOwned};
use std::io::{Read, Write};

/// Why bytes could not be turned into a value, or a frame could not be moved.
#[derive(Debug, thiserror::Error)]
pub enum CodecError {
    /// The bytes are not an encoding of the wanted type.
    #[error("{what} cannot be decoded from {length} bytes: {reason}")]
    Malformed {
        /// The type wanted.
        what: &'static str,
        /// How many bytes were given.
        length: usize,
        /// What the decoder says.
        reason: String,
    },
    /// A value was decoded, but bytes are left over.
    #[error("{what} is followed by {extra} bytes that do not belong to it")]
    Trailing {
        /// The type wanted.
        what: &'static str,
        /// Bytes left over.
        extra: usize,
    },
    /// The frame is larger than both sides agreed.
    #[error("a frame of {length} bytes is over the limit of {limit}")]
    TooLong {
        /// Length announced or to be sent, bytes.
        length: usize,
        /// The limit, bytes.
        limit: usize,
    },
    /// The peer closed the stream between two frames.
    #[error("the peer closed the stream")]
    Closed,
    /// The stream failed.
    #[error("the stream failed: {0}")]
    Io(#[from] std::io::Error),
}

fn short_name<T>() -> &'static str {
    let name = std::any::type_name::<T>();
    let end = name.find('<').unwrap_or(name.len());
    let start = name[..end].rfind("::").map_or(0, |at| at + 2);
    &name[start..]
}

/// Encodes a value.
///
/// # Panics
/// Never for types made of the serde data model that have known lengths, which all of ours are.
pub fn encode<T: Serialize>(value: &T) -> Vec<u8> {
    match postcard::to_stdvec(value) {
        Ok(bytes) => bytes,
        Err(error) => unreachable!("{} has no encoding: {error}", short_name::<T>()),
    }
}

/// Length of a value's encoding, bytes, without making it.
pub fn encoded_bytes<T: Serialize>(value: &T) -> usize {
    match postcard::serialize_with_flavor(value, postcard::ser_flavors::Size::default()) {
        Ok(bytes) => bytes,
        Err(error) => unreachable!("{} has no encoding: {error}", short_name::<T>()),
    }
}

/// Decodes a value that fills `bytes` exactly.
///
/// # Errors
/// `Malformed` or `Trailing`.
pub fn decode<T: DeserializeOwned>(bytes: &[u8]) -> Result<T, CodecError> {
    let (value, rest) = postcard::take_from_bytes::<T>(bytes).map_err(|error| CodecError::Malformed {
        what: short_name::<T>(),
        length: bytes.len(),
        reason: error.to_string(),
    })?;
    if rest.is_empty() {
        Ok(value)
    } else {
        Err(CodecError::Trailing { what: short_name::<T>(), extra: rest.len() })
    }
}

/// Which variant of an enum the encoding of one begins with, counted from 0; none when it begins with no number.
pub fn variant(bytes: &[u8]) -> Option<u32> {
    postcard::take_from_bytes::<u32>(bytes).ok().map(|(variant, _)| variant)
}

/// Encodes a value as a frame: little-endian `u32` length, then the body.
///
/// # Errors
/// `TooLong` when the body passes [`FRAME_BYTES_MAX`].
pub fn encode_frame<T: Serialize>(value: &T) -> Result<Vec<u8>, CodecError> {
    let body = encode(value);
    if body.len() > FRAME_BYTES_MAX {
        return Err(CodecError::TooLong { length: body.len(), limit: FRAME_BYTES_MAX });
    }
    let mut frame = Vec::with_capacity(4 + body.len());
    frame.extend_from_slice(&(body.len() as u32).to_le_bytes());
    frame.extend_from_slice(&body);
    Ok(frame)
}

/// Length of the body that a frame header announces.
///
/// # Errors
/// `TooLong` when it passes [`FRAME_BYTES_MAX`].
pub fn frame_length(header: [u8; 4]) -> Result<usize, CodecError> {
    let length = u32::from_le_bytes(header) as usize;
    if length > FRAME_BYTES_MAX {
        return Err(CodecError::TooLong { length, limit: FRAME_BYTES_MAX });
    }
    Ok(length)
}

/// Writes one frame to a blocking stream.
///
/// # Errors
/// `TooLong` or `Io`.
pub fn write_frame<T: Serialize>(stream: &mut impl Write, value: &T) -> Result<(), CodecError> {
    stream.write_all(&encode_frame(value)?)?;
    Ok(())
}

/// Reads one frame from a blocking stream.
///
/// # Errors
/// `Closed` when the stream ends before a header's first byte, `Io` when it ends inside a frame.
pub fn read_frame<T: DeserializeOwned>(stream: &mut impl Read) -> Result<T, CodecError> {
    let mut header = [0_u8; 4];
    let mut filled = 0;
    while filled < header.len() {
        match stream.read(&mut header[filled..])? {
            0 if filled == 0 => return Err(CodecError::Closed),
            0 => return Err(CodecError::Io(std::io::ErrorKind::UnexpectedEof.into())),
            read => filled += read,
        }
    }
    let mut body = vec![0; frame_length(header)?];
    stream.read_exact(&mut body)?;
    decode(&body)
}

#[cfg(test)]
mod tests;
