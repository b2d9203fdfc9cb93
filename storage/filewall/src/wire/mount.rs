//! MOUNT version 3 (RFC 1813, appendix I).

use super::nfs3::{HANDLE_BYTES_MAX, PATH_BYTES_MAX};
use super::rpc::put_success;
use super::xdr::{Read, Reader, Span, put_opaque, put_u32};

/// The version that is spoken.
pub const VERSION: u32 = 3;
/// Longest path of a mount, bytes.
pub const MOUNT_PATH_BYTES_MAX: usize = 1024;
/// Most flavours in a reply.
const FLAVORS_MAX: usize = 64;
/// Access denied.
pub const DENIED: u32 = 13;
/// What shall be mounted is no folder.
pub const NOT_A_FOLDER: u32 = 20;
/// Something failed.
pub const FAULT: u32 = 10006;

/// A call of MOUNT.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Call {
    /// Nothing.
    Null,
    /// Handle of a path.
    Mount(Span),
    /// Who has mounted what.
    Dump,
    /// The caller has unmounted a path.
    Unmount(Span),
    /// The caller has unmounted everything.
    UnmountAll,
    /// What can be mounted.
    Export,
}

/// Reads the arguments of procedure `procedure`; `None` if there is no such procedure.
///
/// # Errors
/// [`super::Wrong`].
pub fn call(reader: &mut Reader<'_>, procedure: u32) -> Read<Option<Call>> {
    let call = match procedure {
        0 => Call::Null,
        1 => Call::Mount(reader.opaque(MOUNT_PATH_BYTES_MAX)?),
        2 => Call::Dump,
        3 => Call::Unmount(reader.opaque(MOUNT_PATH_BYTES_MAX)?),
        4 => Call::UnmountAll,
        5 => Call::Export,
        _ => return Ok(None),
    };
    reader.end()?;
    Ok(Some(call))
}

/// Reads the results of MNT: the handle, or the status when it is not 0.
///
/// # Errors
/// [`super::Wrong`].
pub fn mount_results(reader: &mut Reader<'_>) -> Read<Result<Span, u32>> {
    let status = reader.u32()?;
    if status != 0 {
        reader.end()?;
        return Ok(Err(status));
    }
    let handle = reader.opaque(HANDLE_BYTES_MAX)?;
    for _ in 0..reader.length(FLAVORS_MAX)? {
        reader.u32()?;
    }
    reader.end()?;
    Ok(Ok(handle))
}

/// Appends the answer to MNT: a handle with AUTH_SYS as the only flavour.
pub fn put_mounted(out: &mut Vec<u8>, xid: u32, handle: &[u8]) {
    put_success(out, xid, 4 + 4 + handle.len().next_multiple_of(4) + 8);
    put_u32(out, 0);
    put_opaque(out, handle);
    put_u32(out, 1);
    put_u32(out, super::rpc::flavor::SYS);
}

/// Appends a refusal of MNT.
pub fn put_refused(out: &mut Vec<u8>, xid: u32, status: u32) {
    put_success(out, xid, 4);
    put_u32(out, status);
}

/// Appends an answer without results (NULL, UMNT, UMNTALL).
pub fn put_void(out: &mut Vec<u8>, xid: u32) {
    put_success(out, xid, 0);
}

/// Appends the answer to DUMP: nobody. Clients show it to people only, and the list tells strangers about others.
pub fn put_dump(out: &mut Vec<u8>, xid: u32) {
    put_success(out, xid, 4);
    put_u32(out, 0);
}

/// Appends the answer to EXPORT: one path, for everybody (who may mount is a policy's matter).
pub fn put_export(out: &mut Vec<u8>, xid: u32, path: &[u8]) {
    let path = &path[..path.len().min(PATH_BYTES_MAX)];
    put_success(out, xid, 4 + 4 + path.len().next_multiple_of(4) + 4 + 4);
    put_u32(out, 1);
    put_opaque(out, path);
    put_u32(out, 0);
    put_u32(out, 0);
}
