//! Procedures that an operator loads while the store runs (row B8): WebAssembly modules on wasmi.
//!
//! A module is checked and compiled once, then runs in an instance of its own for each call, so that
//! nothing stays between calls but what it wrote to tables.
//!
//! Invariants
//! - Deterministic. Floats, threads, SIMD and every import but ours are refused when the module is loaded; the
//!   engine's release is pinned exactly, because what an instruction costs belongs to the outcome.
//! - Bounded. Fuel for instructions, for what is asked of the store and for bytes that bulk operations move, pages of
//!   memory, tables and the stack all have limits; a module that passes one, or traps, is ended, and nothing of the call is done.
//!   So have all calls of one entry of the order together ([`weir_store::meter`]).
//! - Calls within each other are bounded: what a host function gives, it places where `alloc` says, and `alloc` may ask the
//!   host again. Each such round lies on the thread's own stack.
//! - A module reaches the tables of its namespace, and nothing else.
//!
//! What a module exports
//! - `memory`;
//! - `alloc(bytes: i32) -> i32`: where the host may write so many bytes (arguments, and what it reads);
//! - `call(arguments: i32, bytes: i32) -> i64`: runs; the reply's address in the high half, its bytes in the low.
//!
//! What it may import from module `weir` (see [`host`]). Departure from the paper, whose procedures are
//! compiled into the store: see [`weir_store::procedure`].

mod host;

use host::Session;
use std::fmt;
use std::sync::Arc;
use wasmi::{
    CompilationMode, Config, EnforcedLimits, Engine, Error, ExternType, Linker, Memory, Module, Store,
    StoreLimitsBuilder, TrapCode, TypedFunc,
};
use weir_store::procedure::ARGUMENT_BYTES_MAX;
use weir_store::{Aborted, BadModule, Call, Loader, Procedure, ProcedureLimits};

/// Most calls of functions within each other.
const RECURSION_MAX: usize = 256;
/// Most values on the stack.
const STACK_VALUES_MAX: usize = 64 * 1024;
/// Most elements of a module's tables of functions.
const TABLE_ELEMENTS_MAX: usize = 4_096;
/// The module that our functions are imported from.
const IMPORTS: &str = "weir";

/// Loads WebAssembly modules. See the crate.
pub struct WasmLoader {
    engine: Engine,
}

impl fmt::Debug for WasmLoader {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("WasmLoader")
    }
}

impl Default for WasmLoader {
    fn default() -> WasmLoader {
        WasmLoader::new()
    }
}

impl WasmLoader {
    /// A loader; replicas of one release have equal ones.
    pub fn new() -> WasmLoader {
        let mut config = Config::default();
        config
            .floats(false)
            .wasm_multi_memory(false)
            .wasm_memory64(false)
            .wasm_custom_page_sizes(false)
            .wasm_wide_arithmetic(false)
            .consume_fuel(true)
            .ignore_custom_sections(true)
            .set_max_recursion_depth(RECURSION_MAX)
            .set_max_stack_height(STACK_VALUES_MAX)
            // Whatever is wrong with a module shows when it is loaded, not when it is first called.
            .compilation_mode(CompilationMode::Eager)
            .enforced_limits(EnforcedLimits::strict());
        WasmLoader { engine: Engine::new(&config) }
    }
}

/// What wasmi says, without a trace.
fn text(error: &Error) -> String {
    error.to_string()
}

fn bad(error: &Error) -> BadModule {
    BadModule(text(error))
}

impl Loader for WasmLoader {
    fn load(&self, bytes: &[u8], limits: ProcedureLimits) -> Result<Arc<dyn Procedure>, BadModule> {
        let module = Module::new(&self.engine, bytes).map_err(|error| bad(&error))?;
        for import in module.imports() {
            let known = import.module() == IMPORTS && host::NAMES.contains(&import.name());
            if !known {
                let (from, name) = (import.module(), import.name());
                return Err(BadModule(format!("it imports '{from}.{name}', which is not given")));
            }
        }
        for (name, is_there) in [
            (
                "memory",
                module.get_export("memory").is_some_and(|found| matches!(found, ExternType::Memory(_))),
            ),
            ("alloc", module.get_export("alloc").is_some_and(|found| matches!(found, ExternType::Func(_)))),
            ("call", module.get_export("call").is_some_and(|found| matches!(found, ExternType::Func(_)))),
        ] {
            if !is_there {
                return Err(BadModule(format!("it must export '{name}'")));
            }
        }
        let memory = usize::try_from(limits.memory_bytes_max).unwrap_or(usize::MAX);
        let procedure = WasmProcedure { module, fuel_max: limits.fuel_max, memory_bytes_max: memory };
        procedure.try_out()?;
        Ok(Arc::new(procedure))
    }
}

struct WasmProcedure {
    module: Module,
    fuel_max: u64,
    memory_bytes_max: usize,
}

/// An instance, ready to be called.
struct Instance<'c, 'v, 'a> {
    store: Store<Session<'c, 'v, 'a>>,
    memory: Memory,
    alloc: TypedFunc<i32, i32>,
    call: TypedFunc<(i32, i32), i64>,
}

impl WasmProcedure {
    fn instance<'c, 'v, 'a>(
        &self,
        call: Option<&'c mut Call<'v, 'a>>,
    ) -> Result<Instance<'c, 'v, 'a>, Error> {
        let limits = StoreLimitsBuilder::new()
            .memory_size(self.memory_bytes_max)
            .memories(1)
            .tables(4)
            .table_elements(TABLE_ELEMENTS_MAX)
            .instances(1)
            .trap_on_grow_failure(true)
            .build();
        let mut store = Store::new(self.module.engine(), Session::new(call, limits));
        store.limiter(|session| &mut session.limits);
        let left = store.data().fuel_left();
        store.set_fuel(self.fuel_max.min(left))?;
        let mut linker = Linker::new(self.module.engine());
        host::link(&mut linker)?;
        let instance = linker.instantiate_and_start(&mut store, &self.module)?;
        let memory = instance.get_memory(&store, "memory").ok_or_else(|| Error::new("no memory"))?;
        store.data_mut().memory = Some(memory);
        let alloc = instance.get_typed_func(&store, "alloc")?;
        let call = instance.get_typed_func(&store, "call")?;
        store.data_mut().alloc = Some(alloc);
        Ok(Instance { store, memory, alloc, call })
    }

    /// Whether an instance can be made at all: types of exports, memory, what it does at its start.
    fn try_out(&self) -> Result<(), BadModule> {
        self.instance(None).map(drop).map_err(|error| bad(&error))
    }

    fn run(&self, call: &mut Call<'_, '_>, arguments: &[u8]) -> Result<Vec<u8>, Error> {
        let allowed = self.fuel_max.min(call.fuel_left());
        let (replied, left) = match self.instance(Some(&mut *call)) {
            Ok(Instance { mut store, memory, alloc, call }) => {
                let replied = WasmProcedure::reply(&mut store, memory, alloc, call, arguments);
                (replied, store.get_fuel().unwrap_or(0))
            }
            // What its start used is not known any more; at most all of it.
            Err(error) => (Err(error), 0),
        };
        let ran_out = |error: &Error| left == 0 || error.as_trap_code() == Some(TrapCode::OutOfFuel);
        let of_entry = allowed < self.fuel_max && replied.as_ref().is_err_and(ran_out);
        // One more than there is where the entry's end was met before the call's own: it is the entry that has no more.
        call.burn(if of_entry { allowed + 1 } else { allowed.saturating_sub(left) })
            .map_err(host::aborted)?;
        replied
    }

    fn reply(
        store: &mut Store<Session<'_, '_, '_>>,
        memory: Memory,
        alloc: TypedFunc<i32, i32>,
        function: TypedFunc<(i32, i32), i64>,
        arguments: &[u8],
    ) -> Result<Vec<u8>, Error> {
        let length = i32::try_from(arguments.len()).map_err(|_| Error::new("the arguments are too long"))?;
        let at = alloc.call(&mut *store, length)?;
        memory.write(&mut *store, at as u32 as usize, arguments)?;
        let reply = function.call(&mut *store, (at, length))? as u64;
        let (at, length) = ((reply >> 32) as usize, (reply & 0xFFFF_FFFF) as usize);
        if length > ARGUMENT_BYTES_MAX {
            return Err(Error::new(format!(
                "its reply has {length} bytes, the limit is {ARGUMENT_BYTES_MAX}"
            )));
        }
        let mut bytes = vec![0; length];
        memory.read(&*store, at, &mut bytes)?;
        Ok(bytes)
    }
}

impl Procedure for WasmProcedure {
    fn call(&self, call: &mut Call<'_, '_>, arguments: &[u8]) -> Result<Vec<u8>, Aborted> {
        self.run(call, arguments).map_err(|error| Aborted::new(text(&error)))
    }
}

#[cfg(test)]
mod tests;
