//! Calls of procedures: for an operation, which keeps what they write, and for a query, which keeps nothing.

use crate::meter::{Meter, What};
use crate::name::split_name;
use crate::procedure::{ARGUMENT_BYTES_MAX, BadModule};
use crate::{Answer, Call, Refusal, Registry, Store, View};

/// Namespace and word of the full name of a procedure.
pub(crate) fn split_procedure(procedure: &str) -> Result<(&str, &str), Refusal> {
    if !procedure.contains('/') {
        let problem = "a procedure is named 'namespace/word'".to_owned();
        return Err(Refusal::Name { name: procedure.chars().take(64).collect(), problem });
    }
    split_name(procedure)
}

/// Tries a procedure on a store as it is: its reply when it writes nothing, not even what is there already.
pub(crate) fn ask(
    store: &Store,
    registry: &Registry,
    meter: &mut Meter,
    procedure: &str,
    arguments: &[u8],
) -> Result<Answer, Refusal> {
    let mut view = View::new(store);
    let reply = run(&mut view, registry, meter, procedure, arguments, store.now_ms)?;
    Ok(if view.into_all_writes().is_empty() { Answer::Reply(reply) } else { Answer::Writes })
}

/// Runs a procedure on a view, and gives its reply.
pub(crate) fn run(
    view: &mut View<'_>,
    registry: &Registry,
    meter: &mut Meter,
    procedure: &str,
    arguments: &[u8],
    now_ms: u64,
) -> Result<Vec<u8>, Refusal> {
    let (namespace, word) = split_procedure(procedure)?;
    if arguments.len() > ARGUMENT_BYTES_MAX {
        return Err(Refusal::too_large("arguments", arguments.len(), ARGUMENT_BYTES_MAX));
    }
    let found = match view.store().procedures.get(procedure) {
        Some(module) => {
            meter.call(module.hash, module.bytes.len())?;
            let loaded = registry.loaded(module);
            loaded
                .map_err(|BadModule(problem)| Refusal::Module { procedure: procedure.to_owned(), problem })?
        }
        None => {
            registry.built_in(word).ok_or_else(|| Refusal::NoProcedure { procedure: procedure.to_owned() })?
        }
    };
    let replied = found.call(&mut Call::new(view, meter, namespace, now_ms), arguments);
    if let Some(refusal) = meter.exceeded() {
        return Err(refusal.clone());
    }
    let reply = replied.map_err(|aborted| {
        let reason = aborted.reason.chars().take(1_000).collect();
        Refusal::Procedure { procedure: procedure.to_owned(), reason }
    })?;
    meter.charge(What::Answered, reply.len() as u64)?;
    if reply.len() > ARGUMENT_BYTES_MAX {
        return Err(Refusal::too_large("reply of the procedure", reply.len(), ARGUMENT_BYTES_MAX));
    }
    Ok(reply)
}
