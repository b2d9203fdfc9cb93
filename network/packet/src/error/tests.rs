use super::PacketError;
use std::collections::HashSet;

#[test]
fn labels_are_unique_plain_and_indexed() {
    let labels: HashSet<_> = PacketError::ALL.iter().map(|reason| reason.as_str()).collect();
    assert_eq!(labels.len(), PacketError::COUNT);
    for (position, reason) in PacketError::ALL.iter().enumerate() {
        assert_eq!(reason.index(), position);
        assert!(reason.as_str().bytes().all(|b| b.is_ascii_lowercase() || b.is_ascii_digit() || b == b'_'));
        assert!(!reason.to_string().is_empty());
    }
}
