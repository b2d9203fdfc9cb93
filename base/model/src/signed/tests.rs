use super::*;

#[test]
fn group_keys_are_told_apart_by_their_length() {
    let threshold = BlsKey([[1; 32], [2; 32], [3; 32]]);
    for (key, digits) in [(GroupKey::Single([7; 32]), 64), (GroupKey::Threshold(threshold), 192)] {
        let text = key.to_hex();
        assert_eq!(text.len(), digits);
        assert_eq!(GroupKey::from_hex(&text), Some(key));
    }
    for wrong in ["", "ab", &"g".repeat(64), &"0".repeat(96), &"0".repeat(191)] {
        assert_eq!(GroupKey::from_hex(wrong), None, "{wrong}");
    }
}
