use super::*;
use proptest::prelude::*;

fn message(kind: u16, family: u8, index: i32, name: &str) -> Vec<u8> {
    let mut body = vec![family, 0, 0, 0];
    body.extend_from_slice(&index.to_ne_bytes());
    body.extend_from_slice(&[0; 8]);
    // Another attribute first, of a length that is padded.
    body.extend_from_slice(&[5_u16.to_ne_bytes(), 16_u16.to_ne_bytes()].concat());
    body.extend_from_slice(&[6, 0, 0, 0]);
    let name = [name.as_bytes(), &[0]].concat();
    body.extend_from_slice(&[(4 + name.len() as u16).to_ne_bytes(), IFLA_IFNAME.to_ne_bytes()].concat());
    body.extend_from_slice(&name);
    body.resize(body.len().next_multiple_of(4), 0);
    let mut whole = ((HEADER_BYTES + body.len()) as u32).to_ne_bytes().to_vec();
    whole.extend_from_slice(&kind.to_ne_bytes());
    whole.resize(HEADER_BYTES, 0);
    [whole, body].concat()
}

#[test]
fn what_comes_goes_and_is_renamed_is_news_and_nothing_else_is() {
    let mut names = Names::default();
    assert!(names.take(&message(RTM_NEWLINK, 0, 3, "eth0")), "it comes, or is heard of first");
    assert!(!names.take(&message(RTM_NEWLINK, 0, 3, "eth0")), "up, down, or another address");
    assert!(names.take(&message(RTM_NEWLINK, 0, 3, "moved0")));
    assert!(names.take(&message(RTM_DELLINK, 0, 3, "moved0")));
    assert!(!names.take(&message(RTM_DELLINK, 7, 4, "port0")), "a bridge lost a port");
    assert!(!names.take(&message(24, 0, 3, "eth0")), "no device");
    let several = [message(RTM_NEWLINK, 7, 5, "b"), message(RTM_NEWLINK, 0, 6, "eth1")].concat();
    assert!(names.take(&several), "each of several is looked at");
    for index in 0..2 * NAMES_MAX as i32 {
        names.take(&message(RTM_NEWLINK, 0, index, "x"));
    }
    assert!(names.0.len() <= NAMES_MAX);
}

proptest! {
    #[test]
    fn any_bytes_are_read_to_their_end(bytes in prop::collection::vec(any::<u8>(), 0..200), length in any::<u16>()) {
        Names::default().take(&bytes);
        let mut cut = message(RTM_NEWLINK, 0, 3, "eth0");
        cut[0..4].copy_from_slice(&u32::from(length).to_ne_bytes());
        Names::default().take(&cut);
        cut[32..34].copy_from_slice(&length.to_ne_bytes());
        Names::default().take(&cut);
    }
}
