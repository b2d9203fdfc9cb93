use super::*;
use pcap_file::pcap::PcapReader;

fn frames_in(path: &Path) -> Vec<Vec<u8>> {
    let mut reader = PcapReader::new(std::fs::File::open(path).unwrap()).unwrap();
    let mut frames = Vec::new();
    while let Some(packet) = reader.next_packet() {
        frames.push(packet.unwrap().data.into_owned());
    }
    frames
}

#[test]
fn the_newest_frames_are_in_a_file_that_only_its_owner_reads() {
    use std::os::unix::fs::PermissionsExt;
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join(FAULTS_FILE);
    // A link that somebody left where the file is written is not followed.
    let aside = directory.path().join(format!("{FAULTS_FILE}.new"));
    std::os::unix::fs::symlink(directory.path().join("elsewhere"), &aside).unwrap();
    let mut faults = Faults::in_directory(directory.path());
    for number in 0..FAULTS_KEPT as u8 + 4 {
        faults.keep(vec![number; 60]);
    }
    faults.write_if_due();
    let kept = frames_in(&path);
    assert_eq!((kept.len(), kept[0][0]), (FAULTS_KEPT, 4));
    assert_eq!(std::fs::metadata(&path).unwrap().permissions().mode() & 0o777, 0o600);
    assert!(!directory.path().join("elsewhere").exists());
    // Not written again at once, however many come.
    faults.keep(vec![9; 60]);
    faults.write_if_due();
    assert!(faults.unwritten);
    assert_eq!((faults.count, faults.write_errors), (FAULTS_KEPT as u64 + 5, 0));
}
