//! Status codes that NFSv3 does not have.

/// Done.
pub const OK: u32 = 0;
/// No such name.
pub const NOENT: u32 = 2;
/// Arguments that make no sense.
pub const INVAL: u32 = 22;
/// Access denied.
pub const ACCES: u32 = 13;
/// A name that is none.
pub const BADNAME: u32 = 10041;
/// A name that is too long.
pub const NAMETOOLONG: u32 = 63;
/// Not supported.
pub const NOTSUPP: u32 = 10004;
/// More than the server has room for.
pub const RESOURCE: u32 = 10018;
/// Ask again later.
pub const DELAY: u32 = 10008;
/// The client has been silent for too long.
pub const EXPIRED: u32 = 10011;
/// The server has started again, and states are claimed back.
pub const GRACE: u32 = 10013;
/// It is there already.
pub const EXIST: u32 = 17;
/// It is a folder.
pub const ISDIR: u32 = 21;
/// The handle is that of something that is gone.
pub const STALE: u32 = 70;
/// Nobody knows why.
pub const SERVERFAULT: u32 = 10006;
/// There is no current handle.
pub const NOFILEHANDLE: u32 = 10020;
/// A client's number of another life of the server.
pub const STALE_CLIENTID: u32 = 10022;
/// A state of another life of the server.
pub const STALE_STATEID: u32 = 10023;
/// A state that there is not.
pub const BAD_STATEID: u32 = 10025;
/// An owner's sequence number that is not the next one.
pub const BAD_SEQID: u32 = 10026;
/// A session that there is not (NFSv4.1).
pub const BADSESSION: u32 = 10052;
/// Another call has this place in the session's slot (NFSv4.1).
pub const SEQ_FALSE_RETRY: u32 = 10076;
/// More operations than can be carried out at once (NFSv4.1).
pub const TOO_MANY_OPS: u32 = 10070;
/// Another minor version is wanted.
pub const MINOR_VERSION_MISMATCH: u32 = 10021;
/// Arguments that cannot be decoded.
pub const BADXDR: u32 = 10036;
/// No such operation.
pub const ILLEGAL: u32 = 10044;
/// LOCK and LOCKT: somebody else has it.
pub const DENIED: u32 = 10010;
/// SETCLIENTID: the name is somebody else's.
pub const CLIENT_IN_USE: u32 = 10017;
