//! Every decoder takes any bytes without harm, and gives back what was encoded.

use bytes::Bytes;
use weir_bft::Evidence;
use weir_bft::members::{Link, Member};
use weir_bft::wire::{Batch, Block, Message, Name, Offer, Ref};

#[test]
fn any_bytes_are_a_message_or_are_refused() {
    bolero::check!().for_each(|bytes: &[u8]| {
        if let Ok(message) = Message::decode(Bytes::copy_from_slice(bytes)) {
            assert_eq!(&message.encode()[..], bytes, "one message has one encoding");
        }
    });
}

#[test]
fn any_bytes_are_a_record_or_are_refused() {
    bolero::check!().for_each(|bytes: &[u8]| {
        let bytes = Bytes::copy_from_slice(bytes);
        if let Ok(block) = Block::decode(bytes.clone()) {
            assert_eq!(block.encode(), bytes);
        }
        if let Ok(evidence) = Evidence::decode(bytes.clone()) {
            assert_eq!(evidence.encode(), bytes);
            assert_eq!(evidence.convicts(), None, "nobody signed it");
        }
        if let Ok(batch) = Batch::decode(bytes.clone()) {
            assert_eq!(batch.encode(), bytes);
        }
        if let Ok((height, digest, certificate)) = weir_bft::core::decode_final(bytes.clone()) {
            assert_eq!(weir_bft::core::encode_final(height, &digest, &certificate), bytes);
        }
    });
}

fn samples() -> Vec<Message> {
    let name = Name { origin: 3, life: 77, sequence: 5 };
    let batch = Batch { name, signature: [4; 64], body: Bytes::from_static(b"put this in order") };
    let named = Ref { digest: batch.digest(b"group"), name, bytes: 17 };
    let block =
        Block { epoch: 2, parent: [8; 32], height: 9, first_index: 21, refs: vec![named, named], next: None };
    let member = Member { key: [9; 32], address: "192.0.2.5:1".into() };
    let last = Block { next: Some([(5, member)].into()), ..block.clone() };
    let link = Link { block: last, certificate: Bytes::from_static(b"2f+1") };
    let offer = Offer { index: 4, state_bytes: 5, sha256: [6; 32], file_bytes: 7 };
    vec![
        Message::Batch(batch.clone()),
        Message::Block(block.clone()),
        Message::WantBatches(vec![[1; 32], [2; 32]]),
        Message::WantBlock([3; 32]),
        Message::Tip { height: 12, epoch: 3, serves: true },
        Message::WantRange { above: 13 },
        Message::Range {
            blocks: vec![block],
            batches: vec![batch.clone(), batch],
            certificate: Bytes::from_static(b"2f+1"),
        },
        Message::Offers(vec![offer]),
        Message::WantOffers,
        Message::WantChunk { index: 14, offset: 15 },
        Message::Chunk { index: 16, offset: 17, bytes: Bytes::from_static(b"piece") },
        Message::WantLinks { epoch: 2 },
        Message::Links(vec![link]),
    ]
}

#[test]
fn messages_come_back_and_nothing_shorter_or_longer_is_taken() {
    for message in samples() {
        let bytes = message.encode();
        assert_eq!(Message::decode(bytes.clone()), Ok(message.clone()));
        for end in 0..bytes.len() {
            assert!(Message::decode(bytes.slice(..end)).is_err(), "{message:?} cut at {end}");
        }
        let mut longer = bytes.to_vec();
        longer.push(0);
        assert!(Message::decode(Bytes::from(longer)).is_err(), "{message:?} with a byte more");
    }
}

/// The bytes on the wire and on disk: a change here is a change of the protocol, and needs another version.
#[test]
fn the_bytes_are_what_they_were() {
    let all: Vec<u8> = samples().iter().flat_map(|message| message.encode().to_vec()).collect();
    let name = Name { origin: 1, life: 2, sequence: 3 };
    assert_eq!(sum(&all), 4_106_518_517);
    assert_eq!(hex(&Batch::digest_of(b"group", &name, b"body")[..8]), "34bbcc63ba2b2b0d");
}

/// A sum that every byte changes.
fn sum(bytes: &[u8]) -> u32 {
    bytes.iter().fold(17, |hash: u32, byte| hash.wrapping_mul(16_777_619) ^ u32::from(*byte))
}

fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}
