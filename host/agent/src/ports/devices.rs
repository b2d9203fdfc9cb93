//! Devices in network namespaces, by netlink.
//!
//! A thread that enters a namespace is used for one job there and ends, so that no other work ever
//! runs in the wrong namespace.
//!
//! Invariants: a device is changed or removed only when its alias is a mark of ours and no other agent has signed it
//! ([`super::owner`]); a new device lives on only after it is signed and its mark is set, so that a crash never leaves one that
//! nobody owns.

use super::owner::{Owner, Whose};
use crate::AgentError;
use crate::sys::Tap;
use futures_util::TryStreamExt;
use rtnetlink::packet_route::link::{InfoKind, LinkAttribute, LinkFlags, LinkInfo, LinkMessage, Prop};
use rtnetlink::{Handle, LinkMessageBuilder, LinkUnspec, LinkVeth};
use rustix::thread::{LinkNameSpaceType, move_into_link_name_space};
use std::fs::File;
use std::os::fd::{AsFd, AsRawFd};
use std::path::{Path, PathBuf};
use std::sync::Arc;
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

/// A device that has a mark.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Marked {
    /// Its name.
    pub name: String,
    /// Its alias.
    pub mark: String,
    /// Whose it is.
    pub whose: Whose,
}

/// Where named namespaces are, and who makes devices in them.
#[derive(Clone, Debug)]
pub struct Namespaces {
    folder: PathBuf,
    owner: Arc<Owner>,
}

impl Namespaces {
    /// Namespaces whose names are in a folder.
    pub fn new(folder: PathBuf, owner: Owner) -> Namespaces {
        Namespaces { folder, owner: Arc::new(owner) }
    }

    /// Where their names are.
    pub fn folder(&self) -> &Path {
        &self.folder
    }

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
        let path = self.folder.join(name);
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
        let found = std::fs::metadata(self.folder.join(netns)).ok()?;
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

    /// Makes a device, or sets a marked one right. One that nobody has signed is taken if this is so: `unsigned_is_ours`.
    ///
    /// # Errors
    /// What is in the way.
    pub async fn ensure(&self, spec: &DeviceSpec, unsigned_is_ours: bool) -> Result<Ensured, AgentError> {
        let (wanted, owner) = (spec.clone(), Arc::clone(&self.owner));
        let done = self.run(spec.netns.as_deref(), &spec.name, move |handle| async move {
            let place = Inside { handle, owner, unsigned_is_ours };
            if let Some(renamed) = place.find_ours(&wanted.mark).await?
                && renamed.name != wanted.name
            {
                return Err(format!(
                    "it was renamed to '{0}': rename it back, or remove '{0}'",
                    renamed.name
                ));
            }
            match find(&place.handle, &wanted.name).await? {
                Some(found) => place.take(found, &wanted).await,
                None => create(&place, &wanted).await,
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

    /// Removes the device of ours that has this mark, whatever it is called now; tells whether it was there. One that nobody has
    /// signed is ours if `unsigned_is_ours`.
    ///
    /// # Errors
    /// What is in the way; a namespace that is gone took its devices along and is none.
    pub async fn remove(
        &self,
        netns: Option<&str>,
        name: &str,
        mark: &str,
        unsigned_is_ours: bool,
    ) -> Result<bool, AgentError> {
        if netns.is_some_and(|netns| self.identity(netns).is_none()) {
            return Ok(false);
        }
        let (mark, owner) = (mark.to_string(), Arc::clone(&self.owner));
        self.run(netns, name, move |handle| async move {
            let place = Inside { handle, owner, unsigned_is_ours };
            match place.find_ours(&mark).await? {
                Some(found) => {
                    place.delete(found.index).await?;
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
        let listen = |_| async { super::link_socket::listen().map_err(|error| error.to_string()) };
        self.run(netns, "*", listen).await
    }

    /// Every device in a namespace that has a mark.
    ///
    /// # Errors
    /// The namespace cannot be read; one that is gone is empty.
    pub async fn marked(&self, netns: Option<&str>) -> Result<Vec<Marked>, AgentError> {
        if netns.is_some_and(|netns| self.identity(netns).is_none()) {
            return Ok(Vec::new());
        }
        let owner = Arc::clone(&self.owner);
        self.run(netns, "*", move |handle| async move {
            let found = links(&handle, None).await?;
            Ok(found.into_iter().filter_map(|link| link.marked(&owner)).collect())
        })
        .await
    }
}

/// A namespace as a thread in it sees it.
struct Inside {
    handle: Handle,
    owner: Arc<Owner>,
    /// Whether a device with a mark that nobody has signed is ours.
    unsigned_is_ours: bool,
}

impl Inside {
    fn is_ours(&self, whose: &Whose) -> bool {
        match whose {
            Whose::Ours => true,
            Whose::Unsigned => self.unsigned_is_ours,
            Whose::Other(_) => false,
        }
    }

    /// The device of ours with this mark.
    async fn find_ours(&self, mark: &str) -> Result<Option<Found>, String> {
        let is_it = |link: &Found| {
            link.mark.as_deref() == Some(mark) && self.is_ours(&self.owner.whose(link.other_names()))
        };
        Ok(links(&self.handle, None).await?.into_iter().find(is_it))
    }

    async fn delete(&self, index: u32) -> Result<(), String> {
        self.handle.link().del(index).execute().await.map_err(|error| error.to_string())
    }

    async fn sign(&self, index: u32) -> Result<(), String> {
        let request = self.handle.link().property_add(index).alt_ifname(&[&self.owner.name(index)]);
        request.execute().await.map_err(|error| format!("it cannot be signed: {error}"))
    }

    /// Takes the device that has the wanted name, if it is ours.
    async fn take(&self, found: Found, wanted: &DeviceSpec) -> Result<Ensured, String> {
        let whose = self.owner.whose(found.other_names());
        let Some(mark) = &found.mark else {
            return Err("a device of that name is there and is not ours: rename or remove it".to_string());
        };
        if let Whose::Other(words) = &whose {
            return Err(format!(
                "a device of that name belongs to '{mark}' of another agent, {words}: choose another name or namespace, or remove it if \
                 that agent is gone"
            ));
        }
        if *mark != wanted.mark {
            return Err(format!("a device of that name belongs to '{mark}'"));
        }
        if !self.is_ours(&whose) {
            return Err(format!(
                "a device of that name belongs to '{mark}' of an agent that did not sign it and that is not this one: choose another name \
                 or namespace, or remove it if that agent is gone"
            ));
        }
        if found.is_veth != wanted.kind.is_veth() {
            // It is of the kind that the endpoint had before.
            self.delete(found.index).await?;
            return create(self, wanted).await;
        }
        if whose == Whose::Unsigned {
            self.sign(found.index).await?;
        }
        set(&self.handle, found.index, wanted, false).await?;
        Ok(Ensured::Adopted)
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
    other_names: Vec<String>,
    is_veth: bool,
}

impl Found {
    fn other_names(&self) -> impl Iterator<Item = &str> {
        self.other_names.iter().map(String::as_str)
    }

    fn marked(self, owner: &Owner) -> Option<Marked> {
        let whose = owner.whose(self.other_names());
        Some(Marked { name: self.name, mark: self.mark?, whose })
    }
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
    let (index, name) = (message.header.index, String::new());
    let mut found = Found { index, name, mark: None, other_names: Vec::new(), is_veth: false };
    for attribute in message.attributes {
        match attribute {
            LinkAttribute::IfName(name) => found.name = name,
            LinkAttribute::LinkInfo(info) => found.is_veth = info.contains(&LinkInfo::Kind(InfoKind::Veth)),
            LinkAttribute::IfAlias(alias) if alias.starts_with(MARK_PREFIX) => found.mark = Some(alias),
            LinkAttribute::PropList(properties) => {
                found.other_names = properties.into_iter().filter_map(other_name).collect();
            }
            _ => {}
        }
    }
    (!found.name.is_empty()).then_some(found)
}

fn other_name(property: Prop) -> Option<String> {
    match property {
        Prop::AltIfName(name) => Some(name),
        _ => None,
    }
}

async fn find(handle: &Handle, name: &str) -> Result<Option<Found>, String> {
    Ok(links(handle, Some(name)).await?.into_iter().next())
}

async fn create(place: &Inside, spec: &DeviceSpec) -> Result<Ensured, String> {
    if spec.kind.is_veth() {
        return create_pair(place, spec).await;
    }
    let handle = &place.handle;
    let tap = Tap::create(&spec.name).map_err(|error| match error.raw_os_error() {
        Some(libc::ENOENT) => "/dev/net/tun is missing".to_string(),
        _ => error.to_string(),
    })?;
    let found = find(handle, &spec.name).await?.ok_or("it went away while it was made")?;
    place.sign(found.index).await?;
    set(handle, found.index, spec, true).await?;
    tap.persist().map_err(|error| format!("it cannot be kept: {error}"))?;
    Ok(Ensured::Created)
}

/// Makes a veth pair, of which the other end goes to the host's namespace. It has its name only with its mark: one that a crash left
/// behind has none yet, and is removed here.
async fn create_pair(place: &Inside, spec: &DeviceSpec) -> Result<Ensured, String> {
    let (handle, other) = (&place.handle, spec.host_end());
    let unnamed = format!("{PAIR_UNNAMED}{}", &other[2..]);
    if let Some(left) = find(handle, &unnamed).await? {
        if let Whose::Other(words) = place.owner.whose(left.other_names()) {
            return Err(format!(
                "another agent, {words}, makes a device of that name: choose another name or namespace"
            ));
        }
        place.delete(left.index).await?;
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
    place.sign(found.index).await?;
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
