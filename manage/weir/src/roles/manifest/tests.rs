use super::*;
use crate::roles::state::State;
use std::fs;
use std::sync::Arc;
use weir_base::numbers::Numbers;
use weir_base::world::RealDisk;
use weir_controller::driver::{AuditPlace, Controller, ControllerSettings};
use weir_model::Label;
use weir_order::log::{Log, LogSettings};
use weir_store::{Batch, Operation, TableOptions};
use weir_trust::batch::SingleSigner;

fn domain() -> Label {
    Label::new("lab").unwrap()
}

/// Of which kind a state directory is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Kind {
    Single,
    Raft,
    Bft,
}

fn disk(dir: &Path, folder: &str) -> Arc<RealDisk> {
    Arc::new(RealDisk::open(&dir.join(folder)).unwrap())
}

fn log(dir: &Path, folder: &str) -> Result<(), String> {
    let settings =
        LogSettings { segment_bytes: 64 << 10, batch_bytes_max: 16 << 10, ..LogSettings::default() };
    let (mut log, _) = Log::open(disk(dir, folder), settings, 0).map_err(|error| error.to_string())?;
    log.close().map_err(|error| error.to_string())
}

/// Starts what a controller opens of its state, and ends it.
fn start(dir: &Path, kind: Kind) -> Result<[u8; 32], String> {
    let state = State::open(dir, &domain(), &[]).map_err(|error| error.to_string())?;
    match kind {
        Kind::Single => {
            let name = Label::new("controller").unwrap();
            let mut settings = ControllerSettings::new(domain(), name, Arc::new(state.event_key()));
            settings.order.log.segment_bytes = 1 << 20;
            settings.order.log.batch_bytes_max = 256 << 10;
            settings.order.local.batch_bytes_max = 256 << 10;
            settings.batcher.operation_bytes_max = 128 << 10;
            settings.batcher.batch_bytes_max = 128 << 10;
            settings.audit = Some(AuditPlace { disk: disk(dir, "audit"), bytes_max: 16 << 20 });
            let (signer, clock) =
                (Box::new(SingleSigner(state.group_key())), weir_base::world::RealClock::new());
            let opened = Controller::open(settings, disk(dir, "log"), Arc::new(clock), signer, Vec::new());
            let controller = opened.map_err(|error| error.to_string())?;
            if !dir.join("state.manifest").exists() {
                let table = Operation::CreateTable { table: "a/t".into(), options: TableOptions::default() };
                let answered = controller.handle().operate(Batch::once([table])).unwrap();
                answered.blocking_recv().unwrap().unwrap();
            }
            controller.shutdown();
        }
        Kind::Raft | Kind::Bft => {
            crate::roles::group::secret(dir).map_err(|error| error.to_string())?;
            log(dir, "group")?;
            if kind == Kind::Bft {
                log(dir, "group-votes")?;
            }
            log(dir, "audit")?;
            Numbers::open(disk(dir, "numbers"), "event-numbers", 10, 1).unwrap().take().unwrap();
            fs::write(dir.join("member"), "3\n").unwrap();
        }
    }
    record(dir, "lab");
    Ok(state.event_key().public())
}

fn files(dir: &Path) -> Vec<PathBuf> {
    let mut found = Vec::new();
    for entry in fs::read_dir(dir).unwrap() {
        let path = entry.unwrap().path();
        if path.is_dir() { found.extend(files(&path)) } else { found.push(path) }
    }
    found.sort();
    found
}

/// What happens to a file: it goes, a bit of it flips, or it is cut.
#[derive(Clone, Copy)]
enum Damage {
    Gone,
    /// In thousandths of what is used.
    Flip(usize),
    Cut,
}

const DAMAGES: [Damage; 5] =
    [Damage::Gone, Damage::Flip(0), Damage::Flip(500), Damage::Flip(1_000), Damage::Cut];

/// What is left of a file; nothing where such damage cannot be.
fn damaged(good: &[u8], used: usize, damage: Damage) -> Option<Option<Vec<u8>>> {
    match damage {
        Damage::Gone => Some(None),
        _ if used == 0 => None,
        Damage::Flip(place) => {
            let mut bytes = good.to_vec();
            bytes[(used - 1) * place / 1_000] ^= 1;
            Some(Some(bytes))
        }
        Damage::Cut => Some(Some(good[..used / 2].to_vec())),
    }
}

/// What may go without harm: it is made again, or holds nothing that was acknowledged. Without `carried` nothing is promised of what was before.
fn may_go(path: &Path) -> bool {
    let name = path.file_name().unwrap().to_str().unwrap();
    ["lock", "carrying", "carried", "spare", "state.manifest", "state.manifest.2"].contains(&name)
}

/// Every file: deleted, with a bit flipped, or cut, the controller refuses to start, or it is as it was.
#[test]
fn whatever_is_lost_or_damaged_is_refused_or_mended() {
    for kind in [Kind::Single, Kind::Raft, Kind::Bft] {
        let dir = tempfile::tempdir().unwrap();
        let key = start(dir.path(), kind).unwrap();
        assert_eq!(start(dir.path(), kind), Ok(key), "{kind:?}: a second start");
        let all = files(dir.path());
        assert!(all.len() > 12, "{all:?}");
        for path in all {
            for damage in DAMAGES {
                // As it is now: each start goes on with it.
                let good = fs::read(&path).unwrap();
                let used = good.iter().rposition(|byte| *byte != 0).map_or(0, |last| last + 1);
                let Some(bytes) = damaged(&good[..], used, damage) else { continue };
                match &bytes {
                    Some(bytes) => fs::write(&path, bytes).unwrap(),
                    None => fs::remove_file(&path).unwrap(),
                }
                match start(dir.path(), kind) {
                    Ok(found) => {
                        assert_eq!(found, key, "{kind:?}: {} made another controller", path.display());
                        let missed = bytes.is_some() || may_go(&path);
                        assert!(missed, "{kind:?}: nobody missed {}", path.display());
                        if may_go(&path) {
                            continue;
                        }
                    }
                    Err(error) => {
                        let name = path.file_name().unwrap().to_str().unwrap();
                        let said = error.contains(name) || error.contains("log.proof");
                        assert!(said, "{kind:?}, {name}: '{error}'");
                    }
                }
                fs::write(&path, &good).unwrap();
                assert_eq!(start(dir.path(), kind), Ok(key), "{kind:?}: {} is back", path.display());
            }
        }
    }
}

#[test]
fn a_file_of_another_directory_is_refused() {
    let (dir, other) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
    start(dir.path(), Kind::Single).unwrap();
    start(other.path(), Kind::Single).unwrap();
    for name in ["event.seed", "group.seed", "ca.crt", "join.key", "admin.token", "dataplane.secret"] {
        let good = fs::read(dir.path().join(name)).unwrap();
        fs::copy(other.path().join(name), dir.path().join(name)).unwrap();
        let error = start(dir.path(), Kind::Single).unwrap_err();
        assert!(error.contains(&format!("'{name}' is damaged, or of another")), "{error}");
        fs::write(dir.path().join(name), good).unwrap();
    }
    let elsewhere = State::open(dir.path(), &Label::new("other").unwrap(), &[]).unwrap_err();
    assert!(matches!(elsewhere, StateError::OtherDomain { .. }));
}

#[test]
fn a_directory_of_an_earlier_release_gets_its_manifest_once() {
    let dir = tempfile::tempdir().unwrap();
    let key = start(dir.path(), Kind::Single).unwrap();
    weir_base::manifest::FILES.iter().for_each(|name| fs::remove_file(dir.path().join(name)).unwrap());
    assert_eq!(start(dir.path(), Kind::Single), Ok(key));
    assert!(dir.path().join("state.manifest").exists());
    // One that has lost a key is told also without a manifest.
    weir_base::manifest::FILES.iter().for_each(|name| fs::remove_file(dir.path().join(name)).unwrap());
    fs::remove_file(dir.path().join("event.seed")).unwrap();
    let error = start(dir.path(), Kind::Single).unwrap_err();
    assert!(error.contains("'event.seed' is missing beside a log"), "{error}");
}

#[test]
fn what_an_operator_accepts_is_so() {
    let dir = tempfile::tempdir().unwrap();
    start(dir.path(), Kind::Single).unwrap();
    fs::remove_file(dir.path().join("join.key")).unwrap();
    assert_eq!(problems(dir.path(), None).unwrap(), ["'join.key' is missing"]);
    accept(dir.path()).unwrap();
    // It is not made beside a log either, until the operator said so: that is what was just done.
    start(dir.path(), Kind::Single).unwrap();
    assert_eq!(problems(dir.path(), None).unwrap(), Vec::<String>::new());
}

#[test]
fn a_member_that_begins_anew_keeps_its_keys_and_its_old_place_aside() {
    let dir = tempfile::tempdir().unwrap();
    let key = start(dir.path(), Kind::Bft).unwrap();
    fs::remove_dir_all(dir.path().join("group-votes")).unwrap();
    let error = start(dir.path(), Kind::Bft).unwrap_err();
    assert!(
        error.contains("'group-votes/log.proof' is missing") && error.contains("weir state rejoin"),
        "{error}"
    );
    let aside = rejoin(dir.path()).unwrap();
    assert!(aside.join("group/log.proof").exists() && !dir.path().join("member").exists());
    assert_eq!(start(dir.path(), Kind::Bft), Ok(key));
}

#[test]
fn the_state_is_closed_to_others() {
    use std::os::unix::fs::PermissionsExt;
    let dir = tempfile::tempdir().unwrap();
    fs::set_permissions(dir.path(), fs::Permissions::from_mode(0o755)).unwrap();
    start(dir.path(), Kind::Single).unwrap();
    let mode = |path: &Path| fs::metadata(path).unwrap().permissions().mode() & 0o777;
    assert_eq!(mode(dir.path()), 0o700);
    for path in files(dir.path()) {
        assert_eq!(mode(&path) & 0o077, 0, "{}", path.display());
        assert_eq!(mode(path.parent().unwrap()) & 0o077, 0, "{}", path.display());
    }
}
