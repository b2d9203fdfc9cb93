//! Tests of records in a stream.

use super::*;
use crate::wire::rpc::LAST_FRAGMENT;

fn received(flow: &mut Flow, mut bytes: &[u8]) {
    while !bytes.is_empty() {
        assert_eq!(flow.read(&mut bytes).unwrap(), Came::Bytes);
    }
}

fn fragment(bytes: &[u8], last: bool) -> Vec<u8> {
    let mark = bytes.len() as u32 | if last { LAST_FRAGMENT } else { 0 };
    [&mark.to_be_bytes()[..], bytes].concat()
}

fn sent(flow: &mut Flow) -> Vec<u8> {
    let mut out = Vec::new();
    assert!(flow.flush(&mut out).unwrap());
    out
}

#[test]
fn a_body_goes_out_from_where_it_was_received() {
    let mut flow = Flow::default();
    received(&mut flow, &fragment(b"headbody", true));
    let source = flow.next_record().unwrap().unwrap();
    assert_eq!(flow.record(source).0, b"headbody");
    flow.output.head(|out| out.extend_from_slice(b"HEAD"));
    flow.done(source, 4, true);
    assert!(!flow.at_boundary());
    assert!(flow.pass_body() && flow.output.pins_input());
    assert_eq!(sent(&mut flow), b"HEADbody");
    assert!(flow.at_boundary() && !flow.output.pins_input());
}

#[test]
fn a_body_that_comes_later_is_passed_on_or_skipped() {
    for forward in [true, false] {
        let mut flow = Flow::default();
        let record = fragment(b"headbodybody", true);
        received(&mut flow, &record[..10]);
        let source = flow.next_record().unwrap().unwrap();
        assert!(!flow.is_whole(source));
        flow.done(source, 4, forward);
        assert!(!flow.pass_body());
        received(&mut flow, &record[10..]);
        received(&mut flow, &fragment(b"next", true));
        assert!(flow.pass_body());
        assert_eq!(sent(&mut flow), if forward { &b"bodybody"[..] } else { b"" });
        let source = flow.next_record().unwrap().unwrap();
        assert_eq!(flow.record(source).0, b"next");
    }
}

#[test]
fn fragments_are_put_together_and_bounded() {
    let mut flow = Flow::default();
    received(&mut flow, &[fragment(b"he", false), fragment(b"", false), fragment(b"ad!", true)].concat());
    let source = flow.next_record().unwrap().unwrap();
    assert_eq!(source, Source::Gathered);
    assert_eq!(flow.record(source).0, b"head!");
    flow.done(source, 4, true);
    assert_eq!(sent(&mut flow), b"!");
    assert_eq!(flow.next_record(), Ok(None));
    received(&mut flow, &fragment(b"", false).repeat(FRAGMENTS_MAX + 1));
    assert_eq!(flow.next_record(), Err(BadRecord), "fragments that never end");
    let mut flow = Flow::default();
    received(&mut flow, &((RECORD_BYTES_MAX as u32 + 1) | LAST_FRAGMENT).to_be_bytes());
    assert_eq!(flow.next_record(), Err(BadRecord), "a record that is too long");
}
