use std::os::unix::fs::PermissionsExt;
use std::sync::Arc;

use super::*;
use crate::world::SimDisk;

const NAME: &str = "kept";

/// The power goes at every change of the disk in turn, with what is not synced kept or lost by the seed.
#[test]
fn after_a_loss_of_power_a_file_is_the_old_one_or_the_new_one() {
    let (old, new) = (vec![1; 5000], vec![2; 7000]);
    let mut kept = [0, 0];
    for seed in 0..200 {
        let disk = SimDisk::new(seed);
        replace_at(&disk, NAME, &old).unwrap();
        disk.cut_power_after(seed % 8);
        let replaced = replace_at(&disk, NAME, &new);
        if !disk.is_dead() {
            disk.cut_power();
        }
        let after = disk.restart();
        let content = after.read_all(NAME).unwrap();
        assert!(content == old || content == new, "seed {seed}: {} bytes", content.len());
        assert!(replaced.is_err() || content == new, "seed {seed}: what was said to be there is not");
        kept[usize::from(content == new)] += 1;
        // What is left aside is no obstacle.
        replace_at(&after, NAME, &old).unwrap();
        assert_eq!(after.list().unwrap(), [NAME], "seed {seed}");
    }
    assert!(kept.iter().all(|count| *count > 10), "both ends were seen: {kept:?}");
}

#[test]
fn on_a_full_disk_the_old_content_stays_and_the_space_is_given_back() {
    let disk = SimDisk::new(1);
    replace_at(&disk, NAME, &[1; 1000]).unwrap();
    let used = disk.used_bytes();
    disk.set_capacity_bytes(used + 500);
    assert_eq!(replace_at(&disk, NAME, &[2; 1000]).unwrap_err().kind(), io::ErrorKind::StorageFull);
    assert_eq!((disk.read_all(NAME).unwrap(), disk.used_bytes()), (vec![1; 1000], used));
}

#[test]
fn a_real_file_is_replaced_with_its_mode_and_no_link_is_followed() {
    let folder = tempfile::tempdir().unwrap();
    let (path, other) = (folder.path().join("settings.json"), folder.path().join("other"));
    fs::write(&other, "theirs").unwrap();
    std::os::unix::fs::symlink(&other, folder.path().join("settings.json.new")).unwrap();
    replace(&path, b"one", 0o600).unwrap();
    replace(&path, b"two", 0o600).unwrap();
    assert_eq!((fs::read(&path).unwrap(), fs::read(&other).unwrap()), (b"two".to_vec(), b"theirs".to_vec()));
    assert_eq!(fs::metadata(&path).unwrap().permissions().mode() & 0o7777, 0o600);
    // A link in the place of the file is replaced, not written through.
    fs::remove_file(&path).unwrap();
    std::os::unix::fs::symlink(&other, &path).unwrap();
    replace(&path, b"three", 0o600).unwrap();
    assert_eq!(
        (fs::read(&path).unwrap(), fs::read(&other).unwrap()),
        (b"three".to_vec(), b"theirs".to_vec())
    );
    assert!(replace(&folder.path().join("no/such"), b"", 0o600).is_err());
    assert_eq!(fs::read_dir(folder.path()).unwrap().count(), 2, "nothing is left aside");
}

#[test]
fn text_is_read_whole_or_not_at_all() {
    assert_eq!(read_text(&b"ten bytes!"[..], 10).unwrap(), "ten bytes!");
    assert_eq!(read_text(&b""[..], 0).unwrap(), "");
    let longer = read_text(&b"eleven byte"[..], 10).unwrap_err();
    assert!(
        longer.kind() == io::ErrorKind::FileTooLarge && longer.to_string().contains("10 bytes"),
        "{longer}"
    );
    assert_eq!(read_text("xx\u{e9}".as_bytes(), 3).unwrap_err().kind(), io::ErrorKind::FileTooLarge);
    assert_eq!(read_text(&b"x"[..], u64::MAX).unwrap(), "x");
}

#[test]
fn the_simulated_and_the_real_disk_agree() {
    let folder = tempfile::tempdir().unwrap();
    let disks: [Arc<dyn Disk>; 2] =
        [Arc::new(SimDisk::new(3)), Arc::new(crate::world::RealDisk::open(folder.path()).unwrap())];
    for disk in disks {
        for content in [&b"a"[..], b"", b"longer than before"] {
            replace_at(&*disk, NAME, content).unwrap();
            let file = disk.open(NAME).unwrap();
            let mut read = vec![0; file.len().unwrap() as usize];
            file.read_at(0, &mut read).unwrap();
            assert_eq!((read.as_slice(), disk.list().unwrap()), (content, vec![NAME.to_string()]));
        }
    }
}
