use super::*;
use weir_store::Changed;

fn change(version: u64, bytes: usize) -> Arc<Change> {
    let value = Some(vec![0; bytes].into());
    let write = Changed { table: "t/a".into(), key: [1].as_slice().into(), value, expires_ms: 0 };
    Arc::new(Change { version: Version(version), now_ms: 0, writes: vec![write], dropped: None })
}

#[test]
fn replies_of_a_watch_fit_a_message_and_divide_no_version() {
    let sizes = [10, 3 << 20, 2 << 20, 9 << 20, 1, 1 << 20, 1 << 20];
    let changes: Vec<_> = (1..).zip(sizes).map(|(version, bytes)| change(version, bytes)).collect();
    let split: Vec<&[Arc<Change>]> = parts(&changes).collect();
    assert_eq!(split.concat().len(), changes.len(), "none is lost");
    let versions: Vec<u64> = split.concat().iter().map(|change| change.version.0).collect();
    assert!(versions.is_sorted());
    for part in split {
        let bytes: usize = part.iter().map(|change| change.bytes()).sum();
        assert!(bytes <= WATCH_BYTES || part.len() == 1, "{bytes}");
        assert!(watch_reply(part, &|_: &str, _: &[u8]| true).version > 0);
    }
    assert_eq!(parts(&[]).count(), 0);
}
