//! The device manager (Botelho §VI-D): which devices there are, where they are attached, under which
//! addresses, and when they were seen last.
//!
//! A device is known by its Ethernet address; its number never changes. Where it is attached and its
//! addresses follow its packets. The index by IPv4 address names every device that used the address.
//!
//! In [`Form::Cached`] both devices of a packet may be read a little old; the procedure that notes the source
//! as seen says when it is not attached where the cache had it, and the app reads anew (§VII-E.3; as there,
//! the target is not checked).

use super::{
    ATTEMPTS_MAX, Beside, Data, Error, Form, PacketIn, Result, TableOptions, call, cell, columns_table,
    follow, get, index_table, put, read_whole, some, transact, value, write,
};
use std::collections::BTreeSet;
use std::net::Ipv4Addr;
use std::sync::Arc;
use weir_model::MacAddr;
use weir_store::columns::column;
use weir_store::{Aborted, Action, Call, Condition, Operation, Outcome, Procedure, Registry, Select, Write};

const DEVICES: &str = "devices/devices";
const MACS: &str = "devices/macs";
const ADDRESSES: &str = "devices/addresses";
const COUNTERS: &str = "devices/counters";
/// Most devices that the index keeps for one address, and most addresses of one device.
pub const ADDRESSES_MAX: usize = 64;

const WANTED: [&str; 4] = ["addresses", "attachment", "mac", "seen"];

/// A device.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Device {
    /// Its number.
    pub id: u64,
    /// Its Ethernet address.
    pub mac: MacAddr,
    /// Switch and port where it was seen last.
    pub attachment: (u64, u32),
    /// IPv4 addresses that it used, ascending.
    pub addresses: BTreeSet<Ipv4Addr>,
    /// When it was seen last, milliseconds of the Unix epoch.
    pub seen_ms: u64,
}

/// What a packet led to.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Seen {
    /// Who sent it, as it is now.
    pub source: Device,
    /// Whether it was not known before.
    pub new: bool,
    /// Whom it is for, when that is known.
    pub target: Option<Device>,
}

/// Its tables.
pub fn tables() -> Vec<(String, TableOptions)> {
    vec![
        (DEVICES.to_owned(), columns_table(&[])),
        (COUNTERS.to_owned(), TableOptions::default()),
        (MACS.to_owned(), index_table(DEVICES)),
        (ADDRESSES.to_owned(), TableOptions::default()),
    ]
}

/// Its procedures.
pub fn procedures(registry: Registry) -> Registry {
    registry.with("seen", Arc::new(Handle)).with("touch", Arc::new(Touch)).with("enter", Arc::new(Enter))
}

impl Device {
    /// The entity's encoding, column by column.
    fn value(&self) -> Vec<u8> {
        let addresses: Vec<u8> = self.addresses.iter().flat_map(Ipv4Addr::octets).collect();
        device_value(
            self.id,
            &self.mac.0,
            &attachment(self.attachment),
            &addresses,
            &self.seen_ms.to_be_bytes(),
        )
    }

    fn of(id: u64, part: impl Fn(&str) -> Option<Vec<u8>>) -> Option<Device> {
        let mac: [u8; 6] = part("mac")?.try_into().ok()?;
        let place: [u8; 12] = part("attachment")?.try_into().ok()?;
        let seen: [u8; 8] = part("seen")?.try_into().ok()?;
        let (switch, port) = place.split_first_chunk::<8>()?;
        Some(Device {
            id,
            mac: MacAddr(mac),
            attachment: (u64::from_be_bytes(*switch), u32::from_be_bytes(port.try_into().ok()?)),
            addresses: part("addresses")?.as_chunks::<4>().0.iter().map(|&octets| octets.into()).collect(),
            seen_ms: u64::from_be_bytes(seen),
        })
    }

    fn read(value: &[u8]) -> Option<Device> {
        let id = u64::from_be_bytes(cell(value, "id")?);
        Device::of(id, |name| column(value, name).map(<[u8]>::to_vec))
    }

    /// What a packet changes: place, addresses and time. Says whether more than the time changed.
    fn note(&mut self, packet: &PacketIn) -> bool {
        let before = (self.attachment, self.addresses.len());
        self.attachment = (packet.switch, packet.port);
        if let Some((address, _)) = packet.addresses.filter(|_| self.addresses.len() < ADDRESSES_MAX) {
            self.addresses.insert(address);
        }
        self.seen_ms = self.seen_ms.max(packet.now_ms);
        before != (self.attachment, self.addresses.len())
    }

    fn new(id: u64, packet: &PacketIn) -> Device {
        let mut device = Device {
            id,
            mac: packet.source,
            attachment: (packet.switch, packet.port),
            addresses: BTreeSet::new(),
            seen_ms: packet.now_ms,
        };
        device.note(packet);
        device
    }
}

fn attachment((switch, port): (u64, u32)) -> Vec<u8> {
    [&switch.to_be_bytes()[..], &port.to_be_bytes()].concat()
}

fn device_value(id: u64, mac: &[u8], attachment: &[u8], addresses: &[u8], seen: &[u8]) -> Vec<u8> {
    value(&[
        ("id", &id.to_be_bytes()),
        ("mac", mac),
        ("attachment", attachment),
        ("addresses", addresses),
        ("seen", seen),
        ("class", b"default"),
    ])
}

fn wrong<E: std::error::Error>() -> Error<E> {
    Error::entry(DEVICES, "device", "a column is missing or has another length")
}

/// A device, and what a replace of it must name.
struct Known {
    device: Device,
    unchanged: Condition,
}

/// Reads the device with an Ethernet address.
async fn find<D: Data>(data: &D, form: Form, mac: MacAddr) -> Result<Option<Known>, D::Error> {
    if form >= Form::Columns {
        return find_columns(data, mac).await;
    }
    let found = if form >= Form::References {
        read_whole(data, follow(MACS, &mac.0, Select::Whole), DEVICES).await?
    } else {
        let Some(id) = read_whole(data, get(MACS, &mac.0, Select::Whole), MACS).await? else {
            return Ok(None);
        };
        read_whole(data, get(DEVICES, &id.value, Select::Whole), DEVICES).await?
    };
    let Some(found) = found else { return Ok(None) };
    let device = Device::read(&found.value).ok_or_else(wrong)?;
    let unchanged = match form {
        Form::Plain | Form::References => Condition::Value(found.value),
        _ => Condition::Version(found.version),
    };
    Ok(Some(Known { device, unchanged }))
}

async fn find_columns<D: Data>(data: &D, mac: MacAddr) -> Result<Option<Known>, D::Error> {
    let mut wanted = vec!["id"];
    wanted.extend(WANTED);
    let query = follow(MACS, &mac.0, some(&wanted));
    let Some((version, selected)) = super::read(data, query).await? else { return Ok(None) };
    let weir_store::Selected::Columns(columns) = selected else { return Err(wrong()) };
    let part = |name: &str| columns.iter().find(|(column, _)| column == name).map(|(_, bytes)| bytes.clone());
    let id: [u8; 8] = part("id").and_then(|id| id.try_into().ok()).ok_or_else(wrong)?;
    let device = Device::of(u64::from_be_bytes(id), part).ok_or_else(wrong)?;
    Ok(Some(Known { device, unchanged: Condition::Version(version) }))
}

/// Notes who sent a packet and where, and says who that and the receiver are.
///
/// # Errors
/// [`Error`].
pub async fn seen<D: Data>(
    data: &D,
    form: Form,
    staleness_ms: u64,
    packet: &PacketIn,
) -> Result<Seen, D::Error> {
    match form {
        Form::Procedures => return seen_by_procedure(data, packet).await,
        Form::Cached => return seen_by_cache(data, staleness_ms, packet).await,
        _ => {}
    }
    for _ in 0..ATTEMPTS_MAX {
        let known = find(data, form, packet.source).await?;
        let new = known.is_none();
        let source = match known {
            Some(known) => update(data, form, known, packet).await?,
            None => enter(data, form, packet).await?,
        };
        let Some(source) = source else { continue };
        let target = if packet.target.is_unicast() {
            find(data, form, packet.target).await?.map(|known| known.device)
        } else {
            None
        };
        return Ok(Seen { source, new, target });
    }
    Err(Error::Contended { table: DEVICES.to_owned(), attempts: ATTEMPTS_MAX })
}

/// Writes what a packet says of a known device; `None`: others changed it meanwhile.
async fn update<D: Data>(
    data: &D,
    form: Form,
    known: Known,
    packet: &PacketIn,
) -> Result<Option<Device>, D::Error> {
    let Known { mut device, unchanged } = known;
    let had = device.addresses.len();
    let more = device.note(packet);
    let key = device.id.to_be_bytes();
    let operation = if form >= Form::Columns {
        let mut set = vec![("seen".to_owned(), device.seen_ms.to_be_bytes().to_vec())];
        if more {
            set.push(("attachment".to_owned(), attachment(device.attachment)));
            set.push(("addresses".to_owned(), device.addresses.iter().flat_map(Ipv4Addr::octets).collect()));
        }
        let action = Action::Columns { set, remove: Vec::new() };
        Operation::Write(Write { table: DEVICES.to_owned(), key: key.to_vec(), condition: unchanged, action })
    } else {
        put(DEVICES, &key, unchanged, device.value())
    };
    let done = match packet.addresses.filter(|_| device.addresses.len() > had) {
        None => write(data, operation).await?,
        // Both or neither, so that the index names whoever used an address.
        Some((address, _)) => {
            let indexed = index(data, form, address, device.id).await?;
            transact(data, [operation].into_iter().chain(indexed).collect()).await?
        }
    };
    Ok(done.then_some(device))
}

/// Makes a device; `None`: somebody else made it, or changed the index, meanwhile.
async fn enter<D: Data>(data: &D, form: Form, packet: &PacketIn) -> Result<Option<Device>, D::Error> {
    let action = Action::Increment { column: String::new(), by: 1 };
    let write =
        Write { table: COUNTERS.into(), key: b"device".to_vec(), condition: Condition::Always, action };
    let before = match data.submit(Operation::Write(write)).await.map_err(Error::Data)? {
        Outcome::Counted { before, .. } => before,
        Outcome::Refused(refusal) => return Err(Error::Refused(refusal)),
        other => return Err(Error::entry(COUNTERS, "counter", format!("{other:?}"))),
    };
    let id = u64::try_from(before).map_err(|_| Error::entry(COUNTERS, "counter", "it is below zero"))?;
    let device = Device::new(id, packet);
    let mut writes = vec![
        put(MACS, &packet.source.0, Condition::Absent, id.to_be_bytes().to_vec()),
        put(DEVICES, &id.to_be_bytes(), Condition::Absent, device.value()),
    ];
    for &address in &device.addresses {
        writes.extend(index(data, form, address, id).await?);
    }
    Ok(transact(data, writes).await?.then_some(device))
}

/// The write that adds a device to those of an address; `None`: it is there.
async fn index<D: Data>(
    data: &D,
    form: Form,
    address: Ipv4Addr,
    id: u64,
) -> Result<Option<Operation>, D::Error> {
    let key = address.octets();
    let found = read_whole(data, get(ADDRESSES, &key, Select::Whole), ADDRESSES).await?;
    let Some(value) = with_device(found.as_ref().map_or(&[][..], |found| &found.value), id) else {
        return Ok(None);
    };
    let unchanged = match found {
        None => Condition::Absent,
        Some(found) if form >= Form::Versions => Condition::Version(found.version),
        Some(found) => Condition::Value(found.value),
    };
    Ok(Some(put(ADDRESSES, &key, unchanged, value)))
}

/// The devices of an address with one more; the oldest goes when there are too many. `None`: it is there.
fn with_device(devices: &[u8], id: u64) -> Option<Vec<u8>> {
    let (ids, _) = devices.as_chunks::<8>();
    if ids.contains(&id.to_be_bytes()) {
        return None;
    }
    let from = (ids.len() + 1).saturating_sub(ADDRESSES_MAX);
    Some([ids[from..].as_flattened(), &id.to_be_bytes()].concat())
}

/// The devices that used an address, oldest first.
///
/// # Errors
/// [`Error`].
pub async fn by_address<D: Data>(data: &D, address: Ipv4Addr) -> Result<Vec<u64>, D::Error> {
    let found = read_whole(data, get(ADDRESSES, &address.octets(), Select::Whole), ADDRESSES).await?;
    let value = found.map(|found| found.value).unwrap_or_default();
    Ok(value.as_chunks::<8>().0.iter().map(|&id| u64::from_be_bytes(id)).collect())
}

/// A device by its Ethernet address.
///
/// # Errors
/// [`Error`].
pub async fn by_mac<D: Data>(data: &D, mac: MacAddr) -> Result<Option<Device>, D::Error> {
    Ok(find(data, Form::References, mac).await?.map(|known| known.device))
}

/// All in one request: the procedure reads both devices and notes the source.
async fn seen_by_procedure<D: Data>(data: &D, packet: &PacketIn) -> Result<Seen, D::Error> {
    let arguments = [&packet.source.0[..], &packet.target.0, &note(packet)].concat();
    let reply = call(data, "devices/seen", arguments).await?;
    let (new, rest) = reply.split_first().ok_or_else(wrong)?;
    let (length, rest) = rest.split_first_chunk::<4>().ok_or_else(wrong)?;
    let (source, target) = rest.split_at_checked(u32::from_be_bytes(*length) as usize).ok_or_else(wrong)?;
    let source = Device::read(source).ok_or_else(wrong)?;
    let target = if target.is_empty() { None } else { Some(Device::read(target).ok_or_else(wrong)?) };
    Ok(Seen { source, new: *new == 1, target })
}

async fn seen_by_cache<D: Data>(data: &D, staleness_ms: u64, packet: &PacketIn) -> Result<Seen, D::Error> {
    let mut staleness_ms = staleness_ms;
    for _ in 0..ATTEMPTS_MAX {
        let target = packet.target.is_unicast().then_some(packet.target);
        let source = cached(data, staleness_ms, Some(packet.source)).await?;
        let target = cached(data, staleness_ms, target).await?;
        let Some(mut source) = source else {
            let arguments = [&packet.source.0[..], &note(packet)].concat();
            let reply = call(data, "devices/enter", arguments).await?;
            let (made, device) = reply.split_first().ok_or_else(wrong)?;
            let source = Device::read(device).ok_or_else(wrong)?;
            return Ok(Seen { source, new: *made == 1, target });
        };
        let expected = attachment(source.attachment);
        let arguments = [&source.id.to_be_bytes()[..], &expected, &note(packet)].concat();
        if call(data, "devices/touch", arguments).await? == [1] {
            source.note(packet);
            return Ok(Seen { source, new: false, target });
        }
        staleness_ms = 0;
    }
    Err(Error::Contended { table: DEVICES.to_owned(), attempts: ATTEMPTS_MAX })
}

async fn cached<D: Data>(
    data: &D,
    staleness_ms: u64,
    mac: Option<MacAddr>,
) -> Result<Option<Device>, D::Error> {
    let Some(mac) = mac else { return Ok(None) };
    let Some(id) = data.cached(MACS, &mac.0, staleness_ms).await.map_err(Error::Data)? else {
        return Ok(None);
    };
    let value = data.cached(DEVICES, &id, staleness_ms).await.map_err(Error::Data)?;
    value.map(|value| Device::read(&value).ok_or_else(wrong)).transpose()
}

/// What a packet says of its sender: switch, port, time, and the IPv4 address when there is one.
fn note(packet: &PacketIn) -> Vec<u8> {
    let mut note = attachment((packet.switch, packet.port));
    note.extend(packet.now_ms.to_be_bytes());
    note.extend(packet.addresses.map(|(sender, _)| sender.octets()).into_iter().flatten());
    note
}

fn packet_of_note(source: MacAddr, target: MacAddr, note: &[u8]) -> std::result::Result<PacketIn, Aborted> {
    let wrong =
        || Aborted::new("a note is a switch (8), a port (4), a time (8), and an address (4) or nothing");
    let (switch, rest) = note.split_first_chunk::<8>().ok_or_else(wrong)?;
    let (port, rest) = rest.split_first_chunk::<4>().ok_or_else(wrong)?;
    let (now, rest) = rest.split_first_chunk::<8>().ok_or_else(wrong)?;
    let sender: Option<[u8; 4]> = match rest.len() {
        0 => None,
        _ => Some(rest.try_into().map_err(|_| wrong())?),
    };
    Ok(PacketIn {
        switch: u64::from_be_bytes(*switch),
        port: u32::from_be_bytes(*port),
        source,
        target,
        addresses: sender.map(|sender| (sender.into(), Ipv4Addr::UNSPECIFIED)),
        now_ms: u64::from_be_bytes(*now),
    })
}

/// Notes who sent a packet and where, and says who that and the receiver are: what [`seen`] does in
/// [`Form::Procedures`].
///
/// # Errors
/// What the tables refuse.
pub fn seen_beside(tables: &mut impl Beside, packet: &PacketIn) -> std::result::Result<Seen, Aborted> {
    let device = |value: Vec<u8>| {
        if value.is_empty() { Ok(None) } else { Device::read(&value).map(Some).ok_or_else(broken) }
    };
    let (source, target) = pair(tables, &packet.source.0, &packet.target.0)?;
    let (source, target) = (device(source)?, device(target)?);
    let Some(mut source) = source else {
        let (new, source) = enter_beside(tables, packet)?;
        return Ok(Seen { source, new, target });
    };
    let expected = attachment(source.attachment);
    if !touch(tables, source.id, &expected, |_| Ok(packet.clone()))? {
        return Err(broken());
    }
    source.note(packet);
    Ok(Seen { source, new: false, target })
}

/// Forgets a device and what the index says of it.
///
/// # Errors
/// What the tables refuse.
pub fn forget(tables: &mut impl Beside, mac: MacAddr) -> std::result::Result<(), Aborted> {
    let Some(value) = tables.follow("macs", "devices", &mac.0)? else { return Ok(()) };
    let device = Device::read(&value).ok_or_else(broken)?;
    for address in &device.addresses {
        let Some(ids) = tables.get("addresses", &address.octets())? else { continue };
        let left: Vec<[u8; 8]> =
            ids.as_chunks::<8>().0.iter().copied().filter(|id| *id != device.id.to_be_bytes()).collect();
        match left.is_empty() {
            true => tables.remove("addresses", &address.octets())?,
            false => tables.put("addresses", &address.octets(), left.as_flattened())?,
        }
    }
    tables.remove("devices", &device.id.to_be_bytes())?;
    tables.remove("macs", &mac.0)
}

/// Reads what [`Device::value`] wrote: a row of the table of devices.
pub fn read_device(value: &[u8]) -> Option<Device> {
    Device::read(value)
}

fn broken() -> Aborted {
    Aborted::new("the entry is no device")
}

/// The entries of two devices; empty when not known.
fn pair(
    tables: &mut impl Beside,
    source: &[u8],
    target: &[u8],
) -> std::result::Result<(Vec<u8>, Vec<u8>), Aborted> {
    let mut find = |mac: &[u8]| -> std::result::Result<Vec<u8>, Aborted> {
        Ok(tables.follow("macs", "devices", mac)?.map(|value| value.to_vec()).unwrap_or_default())
    };
    Ok((find(source)?, find(target)?))
}

/// Notes a known device as seen, if it is where the caller thinks. `packet` is made from its Ethernet address.
fn touch(
    tables: &mut impl Beside,
    id: u64,
    expected: &[u8],
    packet: impl FnOnce(MacAddr) -> std::result::Result<PacketIn, Aborted>,
) -> std::result::Result<bool, Aborted> {
    let key = id.to_be_bytes();
    let Some(value) = tables.get("devices", &key)? else { return Ok(false) };
    let mut device = Device::read(&value).ok_or_else(broken)?;
    if attachment(device.attachment) != expected {
        return Ok(false);
    }
    let had = device.addresses.len();
    let packet = packet(device.mac)?;
    if device.note(&packet) {
        tables.put("devices", &key, &device.value())?;
    } else {
        tables.set_column("devices", &key, "seen", &device.seen_ms.to_be_bytes())?;
    }
    if device.addresses.len() > had {
        index_here(tables, &packet, id)?;
    }
    Ok(true)
}

/// Makes a device, or finds that it is there and notes it; says which.
fn enter_beside(tables: &mut impl Beside, packet: &PacketIn) -> std::result::Result<(bool, Device), Aborted> {
    let mac = packet.source.0;
    let (made, device) = match tables.follow("macs", "devices", &mac)? {
        Some(value) => {
            let mut device = Device::read(&value).ok_or_else(broken)?;
            device.note(packet);
            (false, device)
        }
        None => {
            let before = tables.increment("counters", b"device")?;
            let id = u64::try_from(before).map_err(|_| Aborted::new("the counter is below zero"))?;
            tables.put("macs", &mac, &id.to_be_bytes())?;
            (true, Device::new(id, packet))
        }
    };
    tables.put("devices", &device.id.to_be_bytes(), &device.value())?;
    index_here(tables, packet, device.id)?;
    Ok((made, device))
}

fn index_here(tables: &mut impl Beside, packet: &PacketIn, id: u64) -> std::result::Result<(), Aborted> {
    let Some((address, _)) = packet.addresses else { return Ok(()) };
    let found = tables.get("addresses", &address.octets())?;
    if let Some(value) = with_device(found.as_deref().unwrap_or_default(), id) {
        tables.put("addresses", &address.octets(), &value)?;
    }
    Ok(())
}

/// All that [`seen`] does: arguments are the packet's two Ethernet addresses and the note. Replies 1 (the source is new) or 0,
/// the length of the source's entry (4 bytes), the source and the target, which is empty when it is not known.
struct Handle;

impl Procedure for Handle {
    fn call(&self, call: &mut Call<'_, '_>, arguments: &[u8]) -> std::result::Result<Vec<u8>, Aborted> {
        let wrong = || Aborted::new("arguments are two Ethernet addresses (6 and 6) and a note");
        let (source, rest) = arguments.split_first_chunk::<6>().ok_or_else(wrong)?;
        let (target, note) = rest.split_first_chunk::<6>().ok_or_else(wrong)?;
        let seen = seen_beside(call, &packet_of_note(MacAddr(*source), MacAddr(*target), note)?)?;
        let source = seen.source.value();
        let target = seen.target.map(|target| target.value()).unwrap_or_default();
        // A value has at most a mebibyte.
        Ok([&[u8::from(seen.new)][..], &(source.len() as u32).to_be_bytes(), &source, &target].concat())
    }
}

/// Notes a known device as seen: arguments are its number, where the caller thinks it is, and the note.
/// Replies 1, or 0 when it is not there or attached elsewhere.
struct Touch;

impl Procedure for Touch {
    fn call(&self, call: &mut Call<'_, '_>, arguments: &[u8]) -> std::result::Result<Vec<u8>, Aborted> {
        let wrong = || Aborted::new("arguments are a device (8), a switch (8), a port (4) and a note");
        let (id, rest) = arguments.split_first_chunk::<8>().ok_or_else(wrong)?;
        let (expected, note) = rest.split_first_chunk::<12>().ok_or_else(wrong)?;
        let seen = touch(call, u64::from_be_bytes(*id), expected, |mac| {
            packet_of_note(mac, MacAddr::BROADCAST, note)
        })?;
        Ok(vec![u8::from(seen)])
    }
}

/// Makes a device, or finds that it is there and notes it: arguments are its Ethernet address and the note.
/// Replies 1 (made) or 0, and the device.
struct Enter;

impl Procedure for Enter {
    fn call(&self, call: &mut Call<'_, '_>, arguments: &[u8]) -> std::result::Result<Vec<u8>, Aborted> {
        let (mac, note) = arguments
            .split_first_chunk::<6>()
            .ok_or_else(|| Aborted::new("arguments are an Ethernet address (6) and a note"))?;
        let (made, device) = enter_beside(call, &packet_of_note(MacAddr(*mac), MacAddr::BROADCAST, note)?)?;
        Ok([&[u8::from(made)][..], &device.value()].concat())
    }
}
