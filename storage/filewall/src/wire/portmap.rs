//! PORTMAP version 2 and rpcbind versions 3 and 4 (RFC 1833), as far as clients need them to find NFS and MOUNT.
//!
//! FileWall answers them itself, so that clients need no port options. What registers, removes or forwards calls
//! (SET, UNSET, CALLIT and its kin) is not there: nobody registers here, and forwarding would be an amplifier.

use super::rpc::{Refusal, program, put_refusal, put_success};
use super::xdr::{Read, Reader, put_opaque, put_u32};
use std::net::IpAddr;

/// Longest string in an rpcbind call, bytes.
const STRING_BYTES_MAX: usize = 255;
const TCP: u32 = 6;
const UDP: u32 = 17;

/// Ports that are handed out. A port of 0 means that the transport is not served.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Ports {
    /// NFS and MOUNT over TCP.
    pub tcp: u16,
    /// NFS and MOUNT over UDP.
    pub udp: u16,
    /// PORTMAP itself.
    pub portmap: u16,
}

impl Ports {
    fn of(&self, program_number: u32, version: u32, protocol: u32) -> u16 {
        match (program_number, version, protocol) {
            (program::NFS | program::MOUNT, 3, TCP) => self.tcp,
            (program::NFS | program::MOUNT, 3, UDP) => self.udp,
            (program::PORTMAP, 2..=4, TCP | UDP) => self.portmap,
            _ => 0,
        }
    }

    fn list(&self) -> Vec<[u32; 4]> {
        let mut rows = Vec::new();
        for (program_number, version) in [
            (program::PORTMAP, 4),
            (program::PORTMAP, 3),
            (program::PORTMAP, 2),
            (program::NFS, 3),
            (program::MOUNT, 3),
        ] {
            for protocol in [TCP, UDP] {
                let port = self.of(program_number, version, protocol);
                if port != 0 {
                    rows.push([program_number, version, protocol, u32::from(port)]);
                }
            }
        }
        rows
    }
}

/// Answers one call; `own` is the address that the client has reached us at.
///
/// # Errors
/// [`super::Wrong`] when the arguments are none.
pub fn answer(
    reader: &mut Reader<'_>,
    head: &super::rpc::CallHead,
    ports: &Ports,
    own: IpAddr,
    out: &mut Vec<u8>,
) -> Read<()> {
    match (head.version, head.procedure) {
        (2..=4, 0) => {
            reader.end()?;
            put_success(out, head.xid, 0);
        }
        (2, 3) => {
            let (wanted, version, protocol) = (reader.u32()?, reader.u32()?, reader.u32()?);
            reader.u32()?;
            reader.end()?;
            put_success(out, head.xid, 4);
            put_u32(out, u32::from(ports.of(wanted, version, protocol)));
        }
        (2, 4) => {
            reader.end()?;
            put_list(out, head.xid, ports);
        }
        (3 | 4, 3) | (4, 9) => get_address(reader, head.xid, ports, own, out)?,
        (2..=4, _) => put_refusal(out, head.xid, Refusal::ProcedureUnavailable),
        _ => put_refusal(out, head.xid, Refusal::VersionMismatch { low: 2, high: 4 }),
    }
    Ok(())
}

fn put_list(out: &mut Vec<u8>, xid: u32, ports: &Ports) {
    let rows = ports.list();
    put_success(out, xid, rows.len() * 20 + 4);
    for row in rows {
        put_u32(out, 1);
        row.into_iter().for_each(|word| put_u32(out, word));
    }
    put_u32(out, 0);
}

/// GETADDR and GETVERSADDR: a universal address such as `10.0.0.5.8.1` for port 2049.
fn get_address(reader: &mut Reader<'_>, xid: u32, ports: &Ports, own: IpAddr, out: &mut Vec<u8>) -> Read<()> {
    let (wanted, version) = (reader.u32()?, reader.u32()?);
    let netid = reader.opaque(STRING_BYTES_MAX)?;
    let netid = reader.slice(netid);
    reader.opaque(STRING_BYTES_MAX)?;
    reader.opaque(STRING_BYTES_MAX)?;
    reader.end()?;
    let protocol = match (netid, own) {
        (b"tcp", IpAddr::V4(_)) | (b"tcp6", IpAddr::V6(_)) => TCP,
        (b"udp", IpAddr::V4(_)) | (b"udp6", IpAddr::V6(_)) => UDP,
        _ => 0,
    };
    let port = ports.of(wanted, version, protocol);
    let address = if port == 0 { String::new() } else { format!("{own}.{}.{}", port >> 8, port & 0xff) };
    put_success(out, xid, 4 + address.len().next_multiple_of(4));
    put_opaque(out, address.as_bytes());
    Ok(())
}
