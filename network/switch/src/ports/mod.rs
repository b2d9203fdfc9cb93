//! Devices of the ports: TAPs with virtio-net headers, in the endpoints' network namespaces, and the queues of virtual
//! machines ([`vhost`]).
//!
//! A TAP is persistent and belongs to the host's agent, who makes it ([`create_device`]). The
//! switch attaches to it, and the device outlives the switch: after a crash the next one attaches
//! again, and nothing changes for the endpoint.
//!
//! A veth pair is the agent's too, and outlives the switch; the switch has the frames of its host's end.
//!
//! - [`tap`]: opening and setting of a TAP. [`veth`], [`packet`], [`xdp`]: a veth pair and the two ways to have its frames.
//!   [`netlink`]: link and route settings. [`seldom`]: what others can cause as often as they like. [`attach`]: the thread that enters namespaces and tries again until a device is there.

pub mod attach;
pub mod netlink;
pub mod packet;
pub mod seldom;
pub mod tap;
pub mod veth;
pub mod vhost;
pub mod xdp;

use std::io;
use std::net::IpAddr;
use std::os::fd::{AsFd, OwnedFd};
use std::path::PathBuf;
use weir_model::MacAddr;

/// Where named network namespaces are.
const NAMESPACES: &str = "/run/netns";
/// Bytes that an encapsulated segment has above its payload, at most: inner Ethernet, IPv6 and TCP headers with
/// options, and a Geneve header with both options.
const SEGMENT_OVERHEAD: u32 = 14 + 40 + 60 + 24;
/// Frames that may wait in a device for the switch. An endpoint that shares a processor with the switch sends for
/// a whole slice of time, some milliseconds, before the switch runs: what has no room by then is lost.
const QUEUE_FRAMES: u32 = 4096;
/// What one message to the underlay may carry, bytes.
const MESSAGE_BYTES: u32 = 65_487;

/// Why a device could not be had.
#[derive(Debug, thiserror::Error)]
pub enum PortError {
    /// The namespace's name has a slash in it, or is empty.
    #[error("'{0}' is not the name of a network namespace: use the name of a file in {NAMESPACES}")]
    BadNamespace(String),
    /// There is no such namespace.
    #[error("network namespace '{name}' cannot be entered: {source}")]
    NoNamespace {
        /// Its name.
        name: String,
        /// What the kernel says.
        source: io::Error,
    },
    /// A device's name is empty or too long.
    #[error("'{0}' is not the name of a device: use 1 to 15 bytes without '/' or space")]
    BadDevice(String),
    /// There is no such device.
    #[error("device '{0}' is not there")]
    NoDevice(String),
    /// Another process has the device.
    #[error("device '{0}' is used by another process")]
    Busy(String),
    /// The kernel refused something.
    #[error("device '{device}': {doing} failed: {source}")]
    Refused {
        /// The device.
        device: String,
        /// What was tried.
        doing: &'static str,
        /// What the kernel says.
        source: io::Error,
    },
    /// The helper thread did not start or ended early.
    #[error("no thread for the namespace: {0}")]
    Thread(String),
}

/// A device to be made.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DeviceSpec {
    /// Name of the namespace; `None` means the caller's.
    pub netns: Option<String>,
    /// Name of the device.
    pub name: String,
    /// Ethernet address of the endpoint.
    pub mac: MacAddr,
    /// MTU of the network, bytes.
    pub mtu: u16,
}

/// The largest super-frame that an endpoint may send, such that all its segments fit into one message of the
/// underlay: 61 kB or so for an MTU of 1500. Without it every super-frame needs two sends.
pub fn gso_max_size(mtu: u16) -> u32 {
    let payload = u32::from(mtu).saturating_sub(52).max(256);
    let fits = MESSAGE_BYTES / (payload + SEGMENT_OVERHEAD) * payload;
    fits.min(crate::engine::transmit::SEGMENTS_MAX as u32 * payload).min(61_000)
}

/// Makes a persistent TAP device for a port, or brings an existing one in line, and sets it up.
///
/// # Errors
/// [`PortError`].
pub fn create_device(spec: &DeviceSpec) -> Result<(), PortError> {
    let netns = spec.netns.clone();
    let spec = spec.clone();
    in_namespace(netns.as_deref(), move || {
        let device = tap::open(&spec.name, true)?;
        tap::set_persistent(device.as_fd(), &spec.name, true)?;
        let link = netlink::LinkSettings {
            mac: Some(spec.mac.0),
            mtu: Some(u32::from(spec.mtu)),
            gso_max_size: Some(gso_max_size(spec.mtu)),
            queue_frames: Some(QUEUE_FRAMES),
            arp: true,
        };
        netlink::set_link(&spec.name, &link)
    })?
}

/// Makes the device of a gateway's outside, or takes the one that is there, and attaches to it: a TAP without ARP,
/// up, with routes for the translated addresses. Returns it and its Ethernet address.
///
/// It is persistent: when the switch dies, device and routes stay, and what comes from outside is lost there. Were
/// the routes to go with the switch, the kernel would send it by its default route, back to where it came from.
///
/// # Errors
/// [`PortError`].
pub fn create_external(name: &str, mtu: u16, addresses: &[IpAddr]) -> Result<(OwnedFd, [u8; 6]), PortError> {
    let device = tap::open(name, true)?;
    tap::set_persistent(device.as_fd(), name, true)?;
    settle_external(name, mtu, addresses)?;
    let mac = tap::mac(device.as_fd(), name)?;
    Ok((device, mac))
}

/// Sets what the device of the outside shall be, and its routes.
///
/// # Errors
/// [`PortError`].
pub fn settle_external(name: &str, mtu: u16, addresses: &[IpAddr]) -> Result<(), PortError> {
    let link = netlink::LinkSettings {
        mac: None,
        mtu: Some(u32::from(mtu)),
        gso_max_size: Some(gso_max_size(mtu)),
        queue_frames: Some(QUEUE_FRAMES),
        arp: false,
    };
    netlink::set_link(name, &link)?;
    addresses.iter().try_for_each(|address| netlink::add_host_route(name, *address))
}

/// Removes a persistent TAP device; one that is not there is no error.
///
/// # Errors
/// [`PortError`].
pub fn remove_device(netns: Option<&str>, name: &str) -> Result<(), PortError> {
    let name = name.to_string();
    let removed = in_namespace(netns, move || {
        let device = tap::open(&name, false)?;
        tap::set_persistent(device.as_fd(), &name, false)
    })?;
    match removed {
        Err(PortError::NoDevice(_)) => Ok(()),
        other => other,
    }
}

/// Runs something in a thread that has entered a namespace.
///
/// # Errors
/// [`PortError::BadNamespace`], [`PortError::NoNamespace`], [`PortError::Thread`].
pub fn in_namespace<T: Send + 'static>(
    netns: Option<&str>,
    work: impl FnOnce() -> T + Send + 'static,
) -> Result<T, PortError> {
    let namespace = netns.map(open_namespace).transpose()?;
    let name = netns.unwrap_or_default().to_string();
    let thread = std::thread::Builder::new().name("weir-netns".into()).spawn(move || {
        if let Some(namespace) = namespace {
            enter(&namespace).map_err(|source| PortError::NoNamespace { name, source })?;
        }
        Ok(work())
    });
    let thread = thread.map_err(|error| PortError::Thread(error.to_string()))?;
    thread.join().map_err(|_| PortError::Thread("it panicked".into()))?
}

fn open_namespace(name: &str) -> Result<OwnedFd, PortError> {
    if name.is_empty() || name.contains('/') || name == "." || name == ".." {
        return Err(PortError::BadNamespace(name.to_string()));
    }
    let path = PathBuf::from(NAMESPACES).join(name);
    let file = std::fs::File::open(path)
        .map_err(|source| PortError::NoNamespace { name: name.to_string(), source })?;
    Ok(file.into())
}

fn enter(namespace: &OwnedFd) -> io::Result<()> {
    use rustix::thread::{LinkNameSpaceType, move_into_link_name_space};
    move_into_link_name_space(namespace.as_fd(), Some(LinkNameSpaceType::Network)).map_err(io::Error::from)
}

#[cfg(test)]
mod tests;
