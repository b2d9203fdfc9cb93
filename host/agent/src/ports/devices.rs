//! Devices in network namespaces, by netlink.
//!
//! A thread that enters a namespace is used for one job there and ends, so that no other work ever
//! runs in the wrong namespace.
//!
//! Invariants: a device is changed or removed only when its alias is a mark of ours; a new device
//! lives on only after its mark is set, so that a crash never leaves one that nobody owns.

use crate::AgentError;
use crate::sys::Tap;
use futures_util::TryStreamExt;
use rtnetlink::packet_route::link::{InfoKind, LinkAttribute, LinkFlags, LinkInfo, LinkMessage};
use rtnetlink::{Handle, LinkMessageBuilder, LinkUnspec, LinkVeth};
use rustix::thread::{LinkNameSpaceType, move_into_link_name_space};
use std::fs::File;
use std::os::fd::{AsFd, AsRawFd};
use std::path::PathBuf;
use weir_model::MacAddr;
use weir_model::entry::Vni;
use weir_model::resource::{AttachmentKind, host_end};

/// Begins the alias of every device that we make: `weir:<vni>/<endpoint>`.
pub const MARK_PREFIX: &str = "weir:";
/// Frames that wait for the switch: room for what an endpoint sends in the slice of time that it has a
/// processor to itself. With the kernel's 1000, most of a burst of small datagrams is lost.
const TX_QUEUE_FRAMES: u32 = 4096;
/// Largest segment that the endpoint hands over in one piece, bytes: with inner and outer headers
/// for every part of it, it still fits one datagram of the underlay.
const GSO_BYTES_MAX: u32 = 61_000;

/// What the name of a veth pair's end begins with before it has its mark.
const PAIR_UNNAMED: &str = "wn";
/// The namespace of the process's first thread, which enters no other.
const HOST_NAMESPACE: &str = "/proc/self/ns/net";

/// The mark of a port's device.
pub fn mark(vni: Vni, endpoint: &weir_model::Label) -> String {
    format!("{MARK_PREFIX}{vni}/{endpoint}")
}

/// What a port's device shall be.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DeviceSpec {
    /// Named namespace; `None` means the process's own.
    pub netns: Option<String>,
    /// Name of the device.
    pub name: String,
    /// Ethernet address.
    pub mac: MacAddr,
    /// MTU, bytes.
    pub mtu: u16,
    /// Its alias.
    pub mark: String,
    /// A TAP, or one end of a veth pair.
    pub kind: AttachmentKind,
}

impl DeviceSpec {
    /// Name of the other end of a veth pair, in the host's namespace.
    fn host_end(&self) -> String {
        host_end(self.netns.as_deref(), &self.name)
    }
}

/// What was found or done.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Ensured {
    /// The device is new.
    Created,
    /// It was there.
    Adopted,
}

/// Where named namespaces are.
#[derive(Clone, Debug)]
pub struct Namespaces(pub PathBuf);

impl Namespaces {
    fn words(netns: Option<&str>) -> String {
        netns.map_or_else(|| "the host's namespace".to_string(), |name| format!("namespace '{name}'"))
    }

    /// A file that stands for the namespace.
    ///
    /// # Errors
    /// In words, what is missing and what to do.
    fn open(&self, netns: Option<&str>) -> Result<Option<File>, String> {
        let Some(name) = netns else { return Ok(None) };
        if name.is_empty() || name.contains('/') || name == "." || name == ".." {
            return Err("its name is not that of a file".to_string());
        }
        let path = self.0.join(name);
        match File::open(&path) {
            Ok(file) => Ok(Some(file)),
            Err(error) if error.kind() == std::io::ErrorKind::NotFound => {
                Err(format!("waiting for {} to appear (`ip netns add {name}`)", path.display()))
            }
            Err(error) => Err(format!("{}: {error}", path.display())),
        }
    }

    /// Something that changes when the namespace is made anew.
    pub fn identity(&self, netns: &str) -> Option<(u64, u64)> {
        use std::os::unix::fs::MetadataExt;
        let found = std::fs::metadata(self.0.join(netns)).ok()?;
        Some((found.dev(), found.ino()))
    }

    /// Runs a job in a namespace, on a thread of its own.
    async fn run<T, J, F>(&self, netns: Option<&str>, device: &str, job: J) -> Result<T, AgentError>
    where
        T: Send + 'static,
        J: FnOnce(Handle) -> F + Send + 'static,
        F: Future<Output = Result<T, String>>,
    {
        let namespace = self.open(netns);
        let (sender, receiver) = tokio::sync::oneshot::channel();
        let thread = std::thread::Builder::new().name("weir-netns".into()).spawn(move || {
            // The receiver waits until the end, unless the agent ends.
            let _ = sender.send(namespace.and_then(|namespace| enter_and_run(namespace, job)));
        });
        let result = match thread {
            Ok(_) => receiver.await.unwrap_or_else(|_| Err("the job did not finish".to_string())),
            Err(error) => Err(format!("no thread for it: {error}")),
        };
        result.map_err(|reason| AgentError::Device {
            device: device.to_string(),
            namespace: Namespaces::words(netns),
            reason,
        })
    }

    /// Makes a device, or sets a marked one right.
    ///
    /// # Errors
    /// What is in the way.
    pub async fn ensure(&self, spec: &DeviceSpec) -> Result<Ensured, AgentError> {
        let wanted = spec.clone();
        let done = self.run(spec.netns.as_deref(), &spec.name, move |handle| async move {
            if let Some(renamed) = find_marked(&handle, &wanted.mark).await?
                && renamed.name != wanted.name
            {
                return Err(format!(
                    "it was renamed to '{0}': rename it back, or remove '{0}'",
                    renamed.name
                ));
            }
            match find(&handle, &wanted.name).await? {
                Some(found) if found.mark.as_deref() == Some(wanted.mark.as_str()) => {
                    if found.is_veth != wanted.kind.is_veth() {
                        // It is of the kind that the endpoint had before.
                        handle.link().del(found.index).execute().await.map_err(|error| error.to_string())?;
                        return create(&handle, &wanted).await;
                    }
                    set(&handle, found.index, &wanted, false).await?;
                    Ok(Ensured::Adopted)
                }
                Some(found) => Err(match found.mark {
                    Some(mark) => format!("a device of that name belongs to '{mark}'"),
                    None => "a device of that name is there and is not ours: rename or remove it".to_string(),
                }),
                None => create(&handle, &wanted).await,
            }
        });
        let done = done.await?;
        if spec.kind.is_veth() {
            let (name, mtu) = (spec.host_end(), u32::from(spec.mtu));
            self.run(None, &spec.host_end(), move |handle| async move {
                let found = find(&handle, &name).await?.ok_or("the host's end of the pair is gone")?;
                let builder = LinkMessageBuilder::<LinkUnspec>::new().index(found.index).mtu(mtu);
                let set = handle.link().set(builder.txqueuelen(TX_QUEUE_FRAMES).build());
                set.execute().await.map_err(|error| format!("the host's end of the pair: {error}"))
            })
            .await?;
        }
        Ok(done)
    }

    /// Removes the device that has this mark, whatever it is called now; tells whether it was there.
    ///
    /// # Errors
    /// What is in the way; a namespace that is gone took its devices along and is none.
    pub async fn remove(&self, netns: Option<&str>, name: &str, mark: &str) -> Result<bool, AgentError> {
        if netns.is_some_and(|netns| self.identity(netns).is_none()) {
            return Ok(false);
        }
        let mark = mark.to_string();
        self.run(netns, name, move |handle| async move {
            match find_marked(&handle, &mark).await? {
                Some(found) => {
                    handle.link().del(found.index).execute().await.map_err(|error| error.to_string())?;
                    Ok(true)
                }
                None => Ok(false),
            }
        })
        .await
    }

    /// A socket on which the kernel tells of the devices of a namespace.
    ///
    /// # Errors
    /// The namespace cannot be entered, or what the kernel says.
    pub async fn listen(&self, netns: Option<&str>) -> Result<std::os::fd::OwnedFd, AgentError> {
        let listen = |_| async { super::links::listen().map_err(|error| error.to_string()) };
        self.run(netns, "*", listen).await
    }

    /// Name and mark of every device of ours in a namespace.
    ///
    /// # Errors
    /// The namespace cannot be read; one that is gone is empty.
    pub async fn marked(&self, netns: Option<&str>) -> Result<Vec<(String, String)>, AgentError> {
        if netns.is_some_and(|netns| self.identity(netns).is_none()) {
            return Ok(Vec::new());
        }
        self.run(netns, "*", |handle| async move {
            let found = links(&handle, None).await?;
            Ok(found.into_iter().filter_map(|link| Some((link.name, link.mark?))).collect())
        })
        .await
    }
}

fn enter_and_run<T, F>(namespace: Option<File>, job: impl FnOnce(Handle) -> F) -> Result<T, String>
where
    F: Future<Output = Result<T, String>>,
{
    if let Some(namespace) = namespace {
        move_into_link_name_space(namespace.as_fd(), Some(LinkNameSpaceType::Network))
            .map_err(|error| format!("it cannot be entered: {error}"))?;
    }
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_io()
        .build()
        .map_err(|error| format!("no runtime for it: {error}"))?;
    runtime.block_on(async {
        let (connection, handle, _) =
            rtnetlink::new_connection().map_err(|error| format!("no netlink: {error}"))?;
        let connection = tokio::spawn(connection);
        let result = job(handle).await;
        connection.abort();
        result
    })
}

struct Found {
    index: u32,
    name: String,
    mark: Option<String>,
    is_veth: bool,
}

async fn links(handle: &Handle, name: Option<&str>) -> Result<Vec<Found>, String> {
    let request = handle.link().get();
    let request = match name {
        Some(name) => request.match_name(name),
        None => request,
    };
    let mut stream = std::pin::pin!(request.execute());
    let mut found = Vec::new();
    loop {
        match stream.try_next().await {
            Ok(Some(message)) => found.extend(read_link(message)),
            Ok(None) => return Ok(found),
            Err(rtnetlink::Error::NetlinkError(error)) if error.raw_code() == -libc::ENODEV => {
                return Ok(found);
            }
            Err(error) => return Err(error.to_string()),
        }
    }
}

fn read_link(message: LinkMessage) -> Option<Found> {
    let mut found = Found { index: message.header.index, name: String::new(), mark: None, is_veth: false };
    for attribute in message.attributes {
        match attribute {
            LinkAttribute::IfName(name) => found.name = name,
            LinkAttribute::LinkInfo(info) => found.is_veth = info.contains(&LinkInfo::Kind(InfoKind::Veth)),
            LinkAttribute::IfAlias(alias) if alias.starts_with(MARK_PREFIX) => found.mark = Some(alias),
            _ => {}
        }
    }
    (!found.name.is_empty()).then_some(found)
}

async fn find(handle: &Handle, name: &str) -> Result<Option<Found>, String> {
    Ok(links(handle, Some(name)).await?.into_iter().next())
}

async fn find_marked(handle: &Handle, mark: &str) -> Result<Option<Found>, String> {
    Ok(links(handle, None).await?.into_iter().find(|link| link.mark.as_deref() == Some(mark)))
}

async fn create(handle: &Handle, spec: &DeviceSpec) -> Result<Ensured, String> {
    if spec.kind.is_veth() {
        return create_pair(handle, spec).await;
    }
    let tap = Tap::create(&spec.name).map_err(|error| match error.raw_os_error() {
        Some(libc::ENOENT) => "/dev/net/tun is missing".to_string(),
        _ => error.to_string(),
    })?;
    let found = find(handle, &spec.name).await?.ok_or("it went away while it was made")?;
    set(handle, found.index, spec, true).await?;
    tap.persist().map_err(|error| format!("it cannot be kept: {error}"))?;
    Ok(Ensured::Created)
}

/// Makes a veth pair, of which the other end goes to the host's namespace. It has its name only with its mark: one that a crash left
/// behind has none yet, and is removed here.
async fn create_pair(handle: &Handle, spec: &DeviceSpec) -> Result<Ensured, String> {
    let other = spec.host_end();
    let unnamed = format!("{PAIR_UNNAMED}{}", &other[2..]);
    if let Some(left) = find(handle, &unnamed).await? {
        handle.link().del(left.index).execute().await.map_err(|error| error.to_string())?;
    }
    let words = |error: rtnetlink::Error| format!("no veth pair: {error}");
    handle.link().add(LinkVeth::new(&unnamed, &other).build()).execute().await.map_err(words)?;
    let gone = "it went away while it was made";
    let host = File::open(HOST_NAMESPACE).map_err(|error| format!("{HOST_NAMESPACE}: {error}"))?;
    let end = find(handle, &other).await?.ok_or(gone)?;
    let move_end = LinkMessageBuilder::<LinkUnspec>::new().index(end.index).setns_by_fd(host.as_raw_fd());
    let moved = handle.link().set(move_end.build()).execute().await;
    moved.map_err(|error| format!("its other end cannot go to the host's namespace: {error}"))?;
    let found = find(handle, &unnamed).await?.ok_or(gone)?;
    set(handle, found.index, spec, true).await?;
    Ok(Ensured::Created)
}

/// Sets what the device shall be. It is brought up once: later that is the endpoint's affair.
async fn set(handle: &Handle, index: u32, spec: &DeviceSpec, new: bool) -> Result<(), String> {
    let builder = LinkMessageBuilder::<LinkUnspec>::new()
        .index(index)
        .address(spec.mac.0.to_vec())
        .mtu(u32::from(spec.mtu))
        .txqueuelen(TX_QUEUE_FRAMES)
        .append_extra_attribute(LinkAttribute::GsoMaxSize(GSO_BYTES_MAX))
        .append_extra_attribute(LinkAttribute::GsoIpv4MaxSize(GSO_BYTES_MAX));
    let builder =
        if new { builder.append_extra_attribute(LinkAttribute::IfAlias(spec.mark.clone())) } else { builder };
    let builder = if new && spec.kind.is_veth() { builder.name(spec.name.clone()) } else { builder };
    let mut message = builder.build();
    if new {
        message.header.flags |= LinkFlags::Up;
        message.header.change_mask |= LinkFlags::Up;
    }
    handle.link().set(message).execute().await.map_err(|error| format!("it cannot be set: {error}"))
}
