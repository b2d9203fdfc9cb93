use std::io;
use std::sync::Arc;

use super::*;

fn temp_dir(name: &str) -> std::path::PathBuf {
    std::env::temp_dir().join(format!("weir-world-{name}-{}", std::process::id()))
}

/// What both disks must do alike.
fn conforms(disk: &dyn Disk) {
    let file = disk.create("a").unwrap();
    assert_eq!(disk.create("a").err().unwrap().kind(), io::ErrorKind::AlreadyExists);
    assert_eq!(disk.open("b").err().unwrap().kind(), io::ErrorKind::NotFound);
    assert!(file.is_empty().unwrap());
    file.write_at(10, b"weir").unwrap();
    file.sync_data().unwrap();
    assert_eq!(file.len().unwrap(), 14);
    let mut bytes = [9; 20];
    assert_eq!(file.read_at(8, &mut bytes).unwrap(), 6);
    assert_eq!(&bytes[..6], b"\0\0weir");
    disk.create("c").unwrap();
    disk.rename("a", "c").unwrap();
    disk.sync_dir().unwrap();
    assert_eq!(disk.list().unwrap(), ["c"]);
    assert_eq!(disk.open("c").unwrap().len().unwrap(), 14);
    disk.remove("c").unwrap();
    assert!(disk.remove("c").is_err());

    let LockOutcome::Held(held) = disk.lock("lock", "pid 7").unwrap() else { panic!("not locked") };
    let LockOutcome::Busy { holder } = disk.lock("lock", "pid 8").unwrap() else { panic!("locked twice") };
    assert_eq!(holder, "pid 7");
    drop(held);
    assert!(matches!(disk.lock("lock", "pid 9").unwrap(), LockOutcome::Held(_)));
}

#[test]
fn disks_conform() {
    conforms(&SimDisk::new(1));
    let path = temp_dir("conform").join("deep/er");
    conforms(&RealDisk::open(&path).unwrap());
    std::fs::remove_dir_all(temp_dir("conform")).unwrap();
}

#[test]
fn real_disk_refuses_paths() {
    let path = temp_dir("paths");
    let disk = RealDisk::open(&path).unwrap();
    for name in ["", ".", "..", "a/b", "../a"] {
        assert_eq!(disk.create(name).err().unwrap().kind(), io::ErrorKind::InvalidInput, "{name}");
    }
    std::fs::remove_dir_all(path).unwrap();
}

#[test]
fn synced_bytes_and_names_survive_a_power_cut() {
    for seed in 0..200 {
        let disk = SimDisk::new(seed);
        let file = disk.create("a").unwrap();
        file.write_at(0, &[1; 3000]).unwrap();
        file.sync_data().unwrap();
        disk.sync_dir().unwrap();
        file.write_at(3000, &[2; 3000]).unwrap();
        disk.create("b").unwrap();
        disk.cut_power();
        assert!(disk.is_dead() && file.len().is_err());
        let bytes = disk.restart().read_all("a").unwrap();
        assert_eq!(bytes[..3000], [1; 3000]);
        assert!(bytes[3000..].iter().all(|byte| *byte == 2 || *byte == 0));
    }
}

#[test]
fn unsynced_writes_are_kept_lost_torn_and_reordered() {
    let (mut kept, mut lost, mut torn, mut reordered) = (0, 0, 0, 0);
    for seed in 0..300 {
        let disk = SimDisk::new(seed);
        let file = disk.create("a").unwrap();
        disk.sync_dir().unwrap();
        file.write_at(0, &[1; 1024]).unwrap();
        disk.cut_power();
        let mut bytes = disk.restart().read_all("a").unwrap();
        bytes.resize(1024, 0);
        let sums: Vec<usize> = bytes.chunks(512).map(|c| c.iter().map(|b| usize::from(*b)).sum()).collect();
        kept += usize::from(sums == [512, 512]);
        lost += usize::from(sums == [0, 0]);
        torn += usize::from(sums.iter().any(|sum| *sum > 0 && *sum < 512));
        reordered += usize::from(sums == [0, 512]);
    }
    assert!(kept > 0 && lost > 0 && torn > 0 && reordered > 0, "{kept} {lost} {torn} {reordered}");
}

#[test]
fn a_kill_keeps_what_was_written() {
    let disk = SimDisk::new(3);
    disk.create("a").unwrap().write_at(0, b"unsynced").unwrap();
    disk.kill();
    assert!(disk.list().is_err());
    assert_eq!(disk.restart().read_all("a").unwrap(), b"unsynced");
}

#[test]
fn a_failed_sync_reads_back_then_is_lost() {
    let mut lost = 0;
    for seed in 0..50 {
        let disk = SimDisk::new(seed);
        let file = disk.create("a").unwrap();
        disk.sync_dir().unwrap();
        file.write_at(0, &[1; 1024]).unwrap();
        disk.fail_syncs(1);
        assert!(file.sync_data().is_err());
        assert!(file.sync_data().is_ok(), "the pages look clean");
        assert_eq!(disk.read_all("a").unwrap(), [1; 1024]);
        disk.cut_power();
        lost += usize::from(disk.restart().read_all("a").unwrap() != [1; 1024]);
    }
    assert!(lost > 20, "{lost} of 50");
}

#[test]
fn a_full_disk_writes_what_fits() {
    let disk = SimDisk::new(5);
    disk.set_capacity_bytes(100);
    let file = disk.create("a").unwrap();
    file.write_at(0, &[1; 60]).unwrap();
    let error = file.write_at(60, &[2; 60]).unwrap_err();
    assert_eq!((error.kind(), file.len().unwrap()), (io::ErrorKind::StorageFull, 100));
    file.write_at(0, &[3; 100]).unwrap();
    disk.set_capacity_bytes(200);
    file.write_at(100, &[4; 100]).unwrap();
    assert_eq!(disk.used_bytes(), 200);
}

#[test]
fn power_goes_during_the_counted_change() {
    let disk = SimDisk::new(6);
    disk.cut_power_after(2);
    let file = disk.create("a").unwrap();
    file.write_at(0, b"x").unwrap();
    assert!(!disk.is_dead());
    assert!(file.sync_data().is_err());
    assert!(disk.is_dead());
    assert_eq!(disk.changes(), 3);
}

#[test]
fn bits_rot_on_demand() {
    let disk = SimDisk::new(7);
    let file = disk.create("a").unwrap();
    file.write_at(0, &[0; 4]).unwrap();
    disk.flip_bit("a", 2, 3).unwrap();
    assert_eq!(disk.read_all("a").unwrap(), [0, 0, 8, 0]);
    assert!(disk.flip_bit("b", 0, 0).is_err());
}

#[test]
fn clocks_and_numbers() {
    let clock = SimClock::new(5_000);
    let other: Arc<dyn Clock> = Arc::new(clock.clone());
    clock.advance_ns(3_000_000);
    assert_eq!((other.now_ns(), other.wall_ms()), (3_000_000, 5_003));
    clock.advance_ns(u64::MAX);
    assert_eq!(other.now_ns(), u64::MAX);
    let real = RealClock::new();
    let before = real.now_ns();
    assert!(real.now_ns() >= before && real.wall_ms() > 0);

    let (mut a, mut b) = (Rng::new(9), Rng::new(9));
    let (mut left, mut right) = ([0; 13], [0; 13]);
    a.fill(&mut left);
    b.fill(&mut right);
    assert_eq!(left, right);
    assert!((0..1000).all(|_| a.below(7) < 7) && a.below(0) == 0);
    // The published first output of seed 0.
    assert_eq!(Rng::new(0).next_u64(), 0xe220_a839_7b1d_cdaf);
    assert_ne!(random_u64(), random_u64());
}

#[test]
fn a_file_is_opened_though_no_descriptor_is_left() {
    let none = || io::Error::from_raw_os_error(24);
    let before = spare::spent();
    spare::keep();
    // The first descriptors that are given up may go to somebody else.
    let mut tries = 0;
    let opened = spare::opening(|| {
        tries += 1;
        if tries <= spare::SPARES + 3 { Err(none()) } else { std::fs::File::open("/dev/null") }
    });
    assert!(opened.is_ok(), "{opened:?}");
    assert!(spare::spent() > before);
    // Other errors are told at once.
    let mut tries = 0;
    let refused = spare::opening(|| -> io::Result<()> {
        tries += 1;
        Err(io::ErrorKind::PermissionDenied.into())
    });
    assert_eq!((refused.unwrap_err().kind(), tries), (io::ErrorKind::PermissionDenied, 1));
}

#[test]
fn what_a_real_disk_makes_is_its_owners_alone() {
    use std::os::unix::fs::PermissionsExt;
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("state/log");
    let disk = RealDisk::open(&path).unwrap();
    disk.create("a").unwrap();
    disk.lock("lock", "me").unwrap();
    for (path, wanted) in [(path.clone(), 0o700), (path.join("a"), 0o600), (path.join("lock"), 0o600)] {
        let mode = std::fs::metadata(&path).unwrap().permissions().mode() & 0o777;
        assert_eq!(mode, wanted, "{}", path.display());
    }
}
