//! The few link and route settings that devices need, by route netlink in the thread's namespace.

use super::PortError;
use rustix::net::{AddressFamily, RecvFlags, SendFlags, SocketType, recv, send, socket};
use std::io;
use std::net::IpAddr;

const RTM_NEWLINK: u16 = 16;
const RTM_NEWROUTE: u16 = 24;
const NLM_F_REQUEST: u16 = 0x01;
const NLM_F_ACK: u16 = 0x04;
const NLM_F_REPLACE: u16 = 0x100;
const NLM_F_CREATE: u16 = 0x400;
const NLMSG_ERROR: u16 = 2;

const IFLA_ADDRESS: u16 = 1;
const IFLA_MTU: u16 = 4;
const IFLA_TXQLEN: u16 = 13;
const IFLA_GSO_MAX_SIZE: u16 = 41;
const IFLA_GSO_IPV4_MAX_SIZE: u16 = 63;
const RTA_DST: u16 = 1;
const RTA_OIF: u16 = 4;

const TABLE_MAIN: u8 = 254;
const PROTOCOL_STATIC: u8 = 4;
const SCOPE_LINK: u8 = 253;
const TYPE_UNICAST: u8 = 1;
const ANSWER_BYTES: usize = 4096;

/// What to set of a link; `None` leaves it. The link is set up.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct LinkSettings {
    /// Ethernet address.
    pub mac: Option<[u8; 6]>,
    /// MTU, bytes.
    pub mtu: Option<u32>,
    /// Largest super-frame, bytes, of IPv4 and IPv6.
    pub gso_max_size: Option<u32>,
    /// Frames that may wait for the switch.
    pub queue_frames: Option<u32>,
    /// Whether neighbours are asked for by ARP and ND.
    pub arp: bool,
}

struct Request(Vec<u8>);

impl Request {
    fn new(kind: u16, flags: u16, body: &[u8]) -> Request {
        let mut bytes = vec![0; 4];
        bytes.extend_from_slice(&kind.to_ne_bytes());
        bytes.extend_from_slice(&(NLM_F_REQUEST | NLM_F_ACK | flags).to_ne_bytes());
        bytes.extend_from_slice(&[0; 8]);
        bytes.extend_from_slice(body);
        Request(bytes)
    }

    fn attribute(mut self, kind: u16, value: &[u8]) -> Request {
        self.0.extend_from_slice(&((4 + value.len()) as u16).to_ne_bytes());
        self.0.extend_from_slice(&kind.to_ne_bytes());
        self.0.extend_from_slice(value);
        self.0.resize(self.0.len().next_multiple_of(4), 0);
        self
    }

    /// Sends it and waits for the kernel's answer.
    fn send(mut self) -> io::Result<()> {
        let length = self.0.len() as u32;
        self.0[..4].copy_from_slice(&length.to_ne_bytes());
        let socket = socket(AddressFamily::NETLINK, SocketType::RAW, None)?;
        send(&socket, &self.0, SendFlags::empty())?;
        let mut answer = [0_u8; ANSWER_BYTES];
        let (read, _) = recv(&socket, &mut answer, RecvFlags::empty())?;
        let answer = &answer[..read];
        let kind = answer.get(4..6).map(|b| u16::from_ne_bytes([b[0], b[1]]));
        let code = answer.get(16..20).map(|b| i32::from_ne_bytes([b[0], b[1], b[2], b[3]]));
        match (kind, code) {
            (Some(NLMSG_ERROR), Some(0)) => Ok(()),
            (Some(NLMSG_ERROR), Some(code)) => Err(io::Error::from_raw_os_error(-code)),
            _ => Err(io::Error::new(io::ErrorKind::InvalidData, "an answer that is no acknowledgement")),
        }
    }
}

/// The number of a device of the thread's namespace.
///
/// # Errors
/// [`PortError::NoDevice`].
pub fn index_of(device: &str) -> Result<u32, PortError> {
    let missing = || PortError::NoDevice(device.to_string());
    let name = std::ffi::CString::new(device).map_err(|_| missing())?;
    // SAFETY: a live, terminated string.
    #[allow(unsafe_code)]
    let index = unsafe { libc::if_nametoindex(name.as_ptr()) };
    if index == 0 { Err(missing()) } else { Ok(index) }
}

fn refused(device: &str, doing: &'static str) -> impl FnOnce(io::Error) -> PortError {
    move |source| PortError::Refused { device: device.to_string(), doing, source }
}

/// Sets a link and sets it up.
///
/// # Errors
/// [`PortError::NoDevice`], [`PortError::Refused`].
pub fn set_link(device: &str, settings: &LinkSettings) -> Result<(), PortError> {
    let index = index_of(device)?;
    let no_arp = libc::IFF_NOARP as u32;
    let flags = libc::IFF_UP as u32 | if settings.arp { 0 } else { no_arp };
    let mut body = vec![0_u8; 4];
    body.extend_from_slice(&index.to_ne_bytes());
    body.extend_from_slice(&flags.to_ne_bytes());
    body.extend_from_slice(&(libc::IFF_UP as u32 | no_arp).to_ne_bytes());
    let mut request = Request::new(RTM_NEWLINK, 0, &body);
    if let Some(mac) = settings.mac {
        request = request.attribute(IFLA_ADDRESS, &mac);
    }
    if let Some(mtu) = settings.mtu {
        request = request.attribute(IFLA_MTU, &mtu.to_ne_bytes());
    }
    if let Some(frames) = settings.queue_frames {
        request = request.attribute(IFLA_TXQLEN, &frames.to_ne_bytes());
    }
    if let Some(size) = settings.gso_max_size {
        request = request.attribute(IFLA_GSO_MAX_SIZE, &size.to_ne_bytes());
        request = request.attribute(IFLA_GSO_IPV4_MAX_SIZE, &size.to_ne_bytes());
    }
    request.send().map_err(refused(device, "setting the link"))
}

/// Routes one address to a device.
///
/// # Errors
/// [`PortError::NoDevice`], [`PortError::Refused`].
pub fn add_host_route(device: &str, address: IpAddr) -> Result<(), PortError> {
    let index = index_of(device)?;
    let (family, bytes, scope) = match address {
        IpAddr::V4(v4) => (libc::AF_INET, v4.octets().to_vec(), SCOPE_LINK),
        IpAddr::V6(v6) => (libc::AF_INET6, v6.octets().to_vec(), 0),
    };
    let prefix = (bytes.len() * 8) as u8;
    let body = [family as u8, prefix, 0, 0, TABLE_MAIN, PROTOCOL_STATIC, scope, TYPE_UNICAST, 0, 0, 0, 0];
    Request::new(RTM_NEWROUTE, NLM_F_CREATE | NLM_F_REPLACE, &body)
        .attribute(RTA_DST, &bytes)
        .attribute(RTA_OIF, &index.to_ne_bytes())
        .send()
        .map_err(refused(device, "adding a route"))
}
