//! `kind: module`: policies that an administrator writes as WebAssembly (in place of the paper's native ones, 4.3.3).
//!
//! A module exports `memory`, `request() -> i32` and perhaps `reply()`. `request` sees a call before the server does: 0 lets it
//! go on, a status of NFSv3 answers it, -1 answers it with what was given to `results`. `reply` sees the reply to a call that it
//! let go on. Both ask and change through functions of the module `filewall`:
//!
//! | function | does |
//! |---|---|
//! | `number(which: i32) -> i64` | a number of the message (see [`number`]); -1 if it has none |
//! | `set_number(which: i32, value: i64)` | changes it: caller and mode of a call, owner and mode in a reply |
//! | `text(which: i32, at: i32, bytes: i32) -> i32` | copies a text (see [`text`]) as far as it fits; returns its length |
//! | `load(at: i32, bytes: i32) -> i64`, `store(at: i32, bytes: i32, value: i64)` | the dynamic context: numbers by key |
//! | `results(at: i32, bytes: i32)` | results of NFSv3, from the status on |
//!
//! Invariants
//! - Fuel for instructions and for what is moved, memory, tables and the stack are bounded. A module that passes a bound, or
//!   traps, is cut off: the call is answered with `NFS3ERR_SERVERFAULT`, and the next call gets a new instance.
//! - A module sees copies, and what it changes is written only when it has ended well.
//! - What is wrong with a module shows when the policies are loaded.

use super::error::{ModuleError, PolicyError};
use super::explain::{Question, Step};
use super::{Context, Policy, Verdict, ops};
use crate::message::{Asked, Call, Reply};
use crate::wire::make::at;
use crate::wire::nfs3::{ATTRIBUTES_BYTES, Op, Status};
use crate::wire::xdr::get_u32;
use hashbrown::HashMap;
use serde::Deserialize;
use std::any::Any;
use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use wasmi::{
    Caller, CompilationMode, Config, EnforcedLimits, Engine, Error, Linker, Memory, Module, Store,
    StoreLimits, StoreLimitsBuilder, TypedFunc,
};

/// Longest module, bytes.
pub const MODULE_BYTES_MAX: u64 = 4 << 20;
/// Most keys of the dynamic context of one policy.
pub const KEYS_MAX: usize = 65_536;
/// Longest key, bytes.
pub const KEY_BYTES_MAX: usize = 256;
/// Longest results that a module makes, bytes.
pub const RESULTS_BYTES_MAX: usize = 64 << 10;
/// Most fuel for one message: a fraction of a second.
pub const FUEL_MAX: u64 = 100_000_000;
/// Most memory of one instance, bytes.
pub const MEMORY_BYTES_MAX: usize = 64 << 20;
/// Fuel that each function of ours costs, and each byte that it moves one more.
const FUEL_PER_CALL: u64 = 50;

/// Numbers of a message.
#[allow(missing_docs)]
pub mod number {
    pub const OP: usize = 0;
    pub const UID: usize = 1;
    pub const GID: usize = 2;
    /// Permission bits: those that a call sets, or those of the object in a reply.
    pub const MODE: usize = 3;
    pub const SIZE: usize = 4;
    pub const COUNT: usize = 5;
    pub const OFFSET: usize = 6;
    pub const STATUS: usize = 7;
    pub const UNIX_MS: usize = 8;
    pub const LATENCY_US: usize = 9;
    pub const RECORD_BYTES: usize = 10;
    pub const OWNER: usize = 11;
    pub const OWNER_GROUP: usize = 12;
    pub const COUNT_OF_NUMBERS: usize = 13;
}

/// Texts of a message.
#[allow(missing_docs)]
pub mod text {
    pub const NAME: usize = 0;
    pub const NAME_TO: usize = 1;
    pub const HANDLE: usize = 2;
    pub const HANDLE_TO: usize = 3;
    pub const CLIENT: usize = 4;
    pub const USER: usize = 5;
    pub const CONFIG: usize = 6;
    /// The first bytes of what a WRITE brings, as far as the file of the policy allows.
    pub const PAYLOAD: usize = 7;
    pub const COUNT_OF_TEXTS: usize = 8;
}

/// The file.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields, rename_all = "kebab-case")]
pub struct ModuleFile {
    /// The module: `.wasm`, or `.wat` as text. A relative path begins at the folder of policies.
    pub file: PathBuf,
    /// Operations that it wants to see.
    pub ops: Vec<String>,
    /// Text that it may read.
    #[serde(default)]
    pub config: String,
    /// Fuel for one message.
    #[serde(default = "fuel")]
    pub fuel: u64,
    /// Most memory of one instance, bytes.
    #[serde(default = "memory_bytes")]
    pub memory_bytes: usize,
    /// Bytes of the payload of a WRITE that it may read.
    #[serde(default)]
    pub payload_bytes: usize,
}

fn fuel() -> u64 {
    100_000
}

fn memory_bytes() -> usize {
    1 << 20
}

/// Numbers by key.
type Table = Mutex<HashMap<Vec<u8>, i64>>;

/// What an instance may ask of.
struct Host {
    numbers: [i64; number::COUNT_OF_NUMBERS],
    edits: Vec<(usize, i64)>,
    settable: &'static [usize],
    texts: [Vec<u8>; text::COUNT_OF_TEXTS],
    results: Vec<u8>,
    table: Arc<Table>,
    memory: Option<Memory>,
    limits: StoreLimits,
}

struct Instance {
    store: Store<Host>,
    request: TypedFunc<(), i32>,
    reply: Option<TypedFunc<(), ()>>,
}

impl std::fmt::Debug for Instance {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("instance")
    }
}

/// The policy.
#[derive(Debug)]
pub struct ModulePolicy {
    ops: u32,
    module: Module,
    file: ModuleFile,
    table: Arc<Table>,
    idle: Mutex<Vec<Instance>>,
    cut_off: AtomicU64,
}

type Guest<'g> = Caller<'g, Host>;

fn spend(guest: &mut Guest<'_>, bytes: usize) -> Result<(), Error> {
    let fuel = guest.get_fuel()?.checked_sub(FUEL_PER_CALL + bytes as u64);
    guest.set_fuel(fuel.unwrap_or(0))?;
    fuel.map(|_| ()).ok_or_else(|| Error::new("all fuel consumed by WebAssembly"))
}

fn read(guest: &mut Guest<'_>, address: i32, bytes: i32, limit: usize) -> Result<Vec<u8>, Error> {
    let length = bytes as u32 as usize;
    if length > limit {
        return Err(Error::new(format!("{length} bytes are over the limit of {limit}")));
    }
    spend(guest, length)?;
    let memory = guest.data().memory.ok_or_else(|| Error::new("no memory"))?;
    let mut found = vec![0; length];
    memory.read(&*guest, address as u32 as usize, &mut found)?;
    Ok(found)
}

fn link(linker: &mut Linker<Host>) -> Result<(), Error> {
    linker.func_wrap("filewall", "number", |mut guest: Guest<'_>, which: i32| {
        spend(&mut guest, 0)?;
        let found = guest.data().numbers.get(which as u32 as usize).copied();
        found.ok_or_else(|| Error::new(format!("there is no number {which}")))
    })?;
    linker.func_wrap("filewall", "set_number", |mut guest: Guest<'_>, which: i32, value: i64| {
        spend(&mut guest, 0)?;
        let which = which as u32 as usize;
        if !guest.data().settable.contains(&which) {
            return Err(Error::new(format!("number {which} cannot be set here")));
        }
        guest.data_mut().edits.retain(|(known, _)| *known != which);
        guest.data_mut().edits.push((which, value));
        Ok(())
    })?;
    linker.func_wrap("filewall", "text", |mut guest: Guest<'_>, which: i32, address: i32, bytes: i32| {
        let found = guest.data().texts.get(which as u32 as usize).cloned();
        let found = found.ok_or_else(|| Error::new(format!("there is no text {which}")))?;
        let moved = found.len().min(bytes as u32 as usize);
        spend(&mut guest, moved)?;
        let memory = guest.data().memory.ok_or_else(|| Error::new("no memory"))?;
        memory.write(&mut guest, address as u32 as usize, &found[..moved])?;
        Ok::<i32, Error>(i32::try_from(found.len()).unwrap_or(i32::MAX))
    })?;
    linker.func_wrap("filewall", "load", |mut guest: Guest<'_>, address: i32, bytes: i32| {
        let key = read(&mut guest, address, bytes, KEY_BYTES_MAX)?;
        let table = guest.data().table.lock().unwrap_or_else(PoisonError::into_inner);
        Ok::<i64, Error>(table.get(&key).copied().unwrap_or(0))
    })?;
    linker.func_wrap("filewall", "store", |mut guest: Guest<'_>, address: i32, bytes: i32, value: i64| {
        let key = read(&mut guest, address, bytes, KEY_BYTES_MAX)?;
        let mut table = guest.data().table.lock().unwrap_or_else(PoisonError::into_inner);
        if table.len() >= KEYS_MAX && !table.contains_key(&key) {
            return Err(Error::new(format!("more than {KEYS_MAX} keys")));
        }
        table.insert(key, value);
        Ok(())
    })?;
    linker.func_wrap("filewall", "results", |mut guest: Guest<'_>, address: i32, bytes: i32| {
        let results = read(&mut guest, address, bytes, RESULTS_BYTES_MAX)?;
        guest.data_mut().results = results;
        Ok::<(), Error>(())
    })?;
    Ok(())
}

fn engine() -> Engine {
    let mut config = Config::default();
    config
        .floats(false)
        .wasm_multi_memory(false)
        .wasm_memory64(false)
        .consume_fuel(true)
        .ignore_custom_sections(true)
        .set_max_recursion_depth(256)
        .set_max_stack_height(64 * 1024)
        .compilation_mode(CompilationMode::Eager)
        .enforced_limits(EnforcedLimits::strict());
    Engine::new(&config)
}

fn read_module(path: &Path) -> Result<Module, ModuleError> {
    if std::fs::metadata(path)?.len() > MODULE_BYTES_MAX {
        return Err(ModuleError::TooLong { most: MODULE_BYTES_MAX });
    }
    let bytes = wat::parse_file(path)?;
    Ok(Module::new(&engine(), &bytes[..])?)
}

impl ModulePolicy {
    /// Reads, checks and tries a module.
    ///
    /// # Errors
    /// What is wrong.
    pub fn compile(
        file: &ModuleFile,
        folder: &Path,
        before: Option<Arc<dyn Any + Send + Sync>>,
    ) -> Result<ModulePolicy, PolicyError> {
        PolicyError::between("fuel", file.fuel, 1, FUEL_MAX)?;
        if file.memory_bytes > MEMORY_BYTES_MAX {
            let (value, most) = (file.memory_bytes as u64, MEMORY_BYTES_MAX as u64);
            return Err(PolicyError::Above { field: "memory-bytes", value, most });
        }
        let path = folder.join(&file.file);
        let wrong = |why: ModuleError| PolicyError::Module { path: path.clone(), why };
        let module = read_module(&path).map_err(wrong)?;
        let table = before.and_then(|before| before.downcast::<Table>().ok()).unwrap_or_default();
        let policy = ModulePolicy {
            ops: ops::parse(&file.ops)? & !Op::Null.bit(),
            module,
            file: file.clone(),
            table,
            idle: Mutex::default(),
            cut_off: AtomicU64::new(0),
        };
        let instance = policy.instance().map_err(|error| wrong(error.into()))?;
        policy.put_back(instance);
        Ok(policy)
    }

    fn instance(&self) -> Result<Instance, Error> {
        let limits = StoreLimitsBuilder::new()
            .memory_size(self.file.memory_bytes)
            .memories(1)
            .tables(4)
            .table_elements(4096)
            .instances(1)
            .trap_on_grow_failure(true)
            .build();
        let host = Host {
            numbers: [-1; number::COUNT_OF_NUMBERS],
            edits: Vec::new(),
            settable: &[],
            texts: Default::default(),
            results: Vec::new(),
            table: self.table.clone(),
            memory: None,
            limits,
        };
        let mut store = Store::new(self.module.engine(), host);
        store.limiter(|host| &mut host.limits);
        store.set_fuel(self.file.fuel)?;
        let mut linker = Linker::new(self.module.engine());
        link(&mut linker)?;
        let instance = linker.instantiate_and_start(&mut store, &self.module)?;
        let memory =
            instance.get_memory(&store, "memory").ok_or_else(|| Error::new("it must export 'memory'"))?;
        store.data_mut().memory = Some(memory);
        store.data_mut().texts[text::CONFIG] = self.file.config.clone().into_bytes();
        let request = instance
            .get_typed_func(&store, "request")
            .map_err(|error| Error::new(format!("it must export 'request() -> i32': {error}")))?;
        let reply = match instance.get_func(&store, "reply") {
            Some(_) => Some(instance.get_typed_func(&store, "reply")?),
            None => None,
        };
        Ok(Instance { store, request, reply })
    }

    fn put_back(&self, instance: Instance) {
        self.idle.lock().unwrap_or_else(PoisonError::into_inner).push(instance);
    }

    /// Runs one message in an instance; one that is cut off is not used again.
    fn run<T>(
        &self,
        fill: impl FnOnce(&mut Host),
        work: impl FnOnce(&mut Instance) -> Result<T, Error>,
    ) -> Result<T, Error> {
        let idle = self.idle.lock().unwrap_or_else(PoisonError::into_inner).pop();
        let mut instance = idle.map_or_else(|| self.instance(), Ok)?;
        let host = instance.store.data_mut();
        host.edits.clear();
        host.results.clear();
        host.numbers = [-1; number::COUNT_OF_NUMBERS];
        fill(host);
        instance.store.set_fuel(self.file.fuel)?;
        let done = work(&mut instance)?;
        self.put_back(instance);
        Ok(done)
    }

    fn say_cut_off(&self, error: &Error, op: Op) {
        if self.cut_off.fetch_add(1, Ordering::Relaxed).is_power_of_two() {
            tracing::error!(%error, %op, module = %self.file.file.display(), "a module was cut off");
        }
    }
}

fn fill_text(to: &mut Vec<u8>, from: &[u8]) {
    to.clear();
    to.extend_from_slice(from);
}

impl Policy for ModulePolicy {
    fn kind(&self) -> &'static str {
        "module"
    }

    fn ops(&self) -> u32 {
        self.ops
    }

    fn needs_handles(&self) -> bool {
        true
    }

    fn request(&self, call: &mut Call<'_>, _context: &Context<'_>) -> Verdict {
        let payload_bytes = self.file.payload_bytes;
        let fill = |host: &mut Host| {
            let arguments = &call.arguments;
            host.settable = &[number::UID, number::GID, number::MODE];
            host.numbers[number::OP] = arguments.op as i64;
            host.numbers[number::UID] = i64::from(call.caller.uid);
            host.numbers[number::GID] = i64::from(call.caller.gid);
            host.numbers[number::MODE] = arguments.set.mode_at.map_or(-1, |at| i64::from(call.word(at)));
            host.numbers[number::COUNT] = i64::from(arguments.count);
            host.numbers[number::OFFSET] = i64::try_from(arguments.offset).unwrap_or(i64::MAX);
            host.numbers[number::UNIX_MS] = i64::try_from(call.now.unix_ms).unwrap_or(i64::MAX);
            host.numbers[number::RECORD_BYTES] = i64::try_from(call.record_bytes()).unwrap_or(i64::MAX);
            for (at, name) in [(text::NAME, 0), (text::NAME_TO, 1)] {
                let found = if name < arguments.name_count { call.name(name) } else { &[] };
                fill_text(&mut host.texts[at], found);
            }
            for (at, handle) in [(text::HANDLE, 0), (text::HANDLE_TO, 1)] {
                let found = if handle < arguments.handle_count { call.handle(handle) } else { &[] };
                fill_text(&mut host.texts[at], found);
            }
            fill_text(&mut host.texts[text::CLIENT], call.caller.address.to_string().as_bytes());
            fill_text(&mut host.texts[text::USER], call.caller.label().as_bytes());
            let payload = if payload_bytes > 0 { call.payload(payload_bytes) } else { &[] };
            fill_text(&mut host.texts[text::PAYLOAD], payload);
        };
        let ran = self.run(fill, |instance| {
            let verdict = instance.request.call(&mut instance.store, ())?;
            let host = instance.store.data_mut();
            Ok((verdict, std::mem::take(&mut host.edits), std::mem::take(&mut host.results)))
        });
        let (verdict, edits, results) = match ran {
            Ok(ran) => ran,
            Err(error) => {
                self.say_cut_off(&error, call.op());
                return Verdict::Answer(Status::ServerFault);
            }
        };
        let (mut uid, mut gid) = (call.caller.uid, call.caller.gid);
        let mut user = false;
        for (which, value) in edits {
            let value = value as u32;
            match which {
                number::UID => (uid, user) = (value, true),
                number::GID => (gid, user) = (value, true),
                _ => {
                    if let Some(at) = call.arguments.set.mode_at {
                        call.set_word(at, value & 0o7777);
                    }
                }
            }
        }
        if user {
            call.set_user(uid, gid);
        }
        match verdict {
            0 => Verdict::Forward,
            -1 => {
                call.results = results;
                Verdict::Reply
            }
            status => Verdict::Answer(Status::of(status as u32)),
        }
    }

    fn reply(&self, asked: &Asked, reply: &mut Reply<'_>, latency_us: u64, _context: &Context<'_>) {
        let object = reply.results.object;
        let attributes: Option<[u8; ATTRIBUTES_BYTES]> =
            object.and_then(|at| reply.bytes_at(at, ATTRIBUTES_BYTES).try_into().ok());
        let status = reply.results.status;
        let fill = |host: &mut Host| {
            host.settable = &[number::MODE, number::OWNER, number::OWNER_GROUP];
            host.numbers[number::OP] = asked.op as i64;
            host.numbers[number::UID] = i64::from(asked.caller.uid);
            host.numbers[number::GID] = i64::from(asked.caller.gid);
            host.numbers[number::STATUS] = i64::from(status);
            host.numbers[number::LATENCY_US] = i64::try_from(latency_us).unwrap_or(i64::MAX);
            if let Some(attributes) = &attributes {
                let word = |at: usize| i64::from(get_u32(attributes, at));
                host.numbers[number::MODE] = word(at::MODE);
                host.numbers[number::OWNER] = word(at::UID);
                host.numbers[number::OWNER_GROUP] = word(at::GID);
                host.numbers[number::SIZE] = word(at::SIZE) << 32 | word(at::SIZE + 4);
            }
            host.texts.iter_mut().take(text::CONFIG).for_each(Vec::clear);
            fill_text(&mut host.texts[text::HANDLE], asked.handle.as_bytes());
            fill_text(&mut host.texts[text::CLIENT], asked.caller.address.to_string().as_bytes());
            fill_text(&mut host.texts[text::USER], asked.caller.label().as_bytes());
        };
        let ran = self.run(fill, |instance| {
            if let Some(reply) = instance.reply {
                reply.call(&mut instance.store, ())?;
            }
            Ok(std::mem::take(&mut instance.store.data_mut().edits))
        });
        match (ran, object) {
            (Ok(edits), Some(object)) => {
                for (which, value) in edits {
                    let at = match which {
                        number::MODE => at::MODE,
                        number::OWNER => at::UID,
                        _ => at::GID,
                    };
                    reply.set_word(object + at, value as u32);
                }
            }
            (Ok(_), None) => {}
            // The server has carried the call out, but what the module would have hidden the client must not get.
            (Err(error), _) => {
                self.say_cut_off(&error, asked.op);
                reply.failed = Some(Status::ServerFault);
            }
        }
    }

    fn serves_nfs4(&self) -> bool {
        false
    }

    fn dynamic(&self) -> Option<Arc<dyn Any + Send + Sync>> {
        Some(self.table.clone())
    }

    fn details(&self) -> BTreeMap<String, u64> {
        let keys = self.table.lock().unwrap_or_else(PoisonError::into_inner).len();
        [("cut_off".to_string(), self.cut_off.load(Ordering::Relaxed)), ("keys".to_string(), keys as u64)]
            .into()
    }

    fn explain(&self, _question: &Question, _context: &Context<'_>) -> Step {
        Step::forward("a module: what it does with a call shows when it is made")
    }
}

#[cfg(test)]
mod tests;
