//! Guests that mean harm: what they write costs them their own frames, and nobody else anything.

use super::super::driver::{BYTES, Driver, GUEST, INDIRECT, NEXT, Taken, WRITE, take};
use super::super::guest::{Guest, Refused};
use super::super::memory::{Lent, Memory};
use super::super::ring::{Addresses, Queue};
use super::super::{CHAIN_MAX, feature};
use super::{LONG, MODERN, RX, TX, frame, post_buffers, post_frame, send, take_all};
use bolero::check;
use std::os::fd::OwnedFd;
use weir_packet::virtio::VirtioNetHeader;

/// Offers one descriptor as it is, and says what became of it.
fn offered(driver: &mut Driver, guest: &mut Guest, descriptor: (u64, u32, u16, u16)) -> Taken {
    let (address, length, flags, next) = descriptor;
    driver.put_descriptor(TX, 0, &Driver::descriptor(address, length, flags, next));
    driver.offer(TX, 0);
    assert_eq!(guest.begin(0, 64), 1);
    let taken = take(guest, 0, &mut [0; 70_000]);
    guest.publish();
    assert_eq!(driver.take_used(TX).len(), 1, "it is given back, so that the guest goes on");
    taken
}

#[test]
fn descriptors_that_make_no_sense_cost_one_frame() {
    let mut driver = Driver::new(8);
    let mut guest = driver.guest(1, MODERN);
    let end = GUEST + BYTES as u64;
    for nonsense in [
        (0, 100, 0, 0),                  // memory that was not lent
        (end - 50, 100, 0, 0),           // beyond its end
        (u64::MAX - 10, 100, 0, 0),      // around the end of all addresses
        (GUEST, u32::MAX, 0, 0),         // larger than any frame
        (GUEST, 100, WRITE, 0),          // to be written where it is to be read
        (GUEST, 100, NEXT, 8),           // goes on behind the table
        (GUEST, 100, NEXT, 0),           // goes round for ever
        (GUEST, 0, NEXT, 0),             // and without a byte
        (GUEST, 24, INDIRECT, 0),        // half a descriptor
        (GUEST, 0, INDIRECT, 0),         // an empty table
        (GUEST + 4, 32, INDIRECT, 0),    // one that is not aligned
        (end - 16, 32, INDIRECT, 0),     // one beyond the end
        (GUEST, 32, INDIRECT | NEXT, 1), // one with something behind
        (GUEST, 12, 0, 0),               // a header without a frame
        (GUEST, 0, 0, 0),                // nothing at all
    ] {
        assert_eq!(offered(&mut driver, &mut guest, nonsense), Taken::Nonsense, "{nonsense:?}");
    }
    // A table that leads to itself.
    let table = driver.buffer(64);
    let itself = GUEST + table as u64;
    driver.write(table, &Driver::descriptor(itself, 16, INDIRECT, 0));
    assert_eq!(offered(&mut driver, &mut guest, (itself, 16, INDIRECT, 0)), Taken::Nonsense);
    // A number that is no descriptor's.
    driver.offer(TX, 800);
    assert_eq!((guest.begin(0, 64), take(&mut guest, 0, &mut [0; 100])), (1, Taken::Nonsense));
    guest.publish();
    // It is served as ever.
    post_frame(&mut driver, &frame(10));
    assert_eq!(take_all(&mut guest, 0), [frame(10)]);
}

#[test]
fn a_chain_has_a_limit() {
    let mut driver = Driver::new(8);
    let mut guest = driver.guest(1, MODERN);
    let entries = CHAIN_MAX + 1;
    let table = driver.buffer(usize::from(entries) * 16);
    for entry in 0..entries {
        let flags = if entry + 1 == entries { 0 } else { NEXT };
        let bytes = Driver::descriptor(GUEST, 1, flags, entry + 1);
        driver.write(table + usize::from(entry) * 16, &bytes);
    }
    let address = GUEST + table as u64;
    let whole = (address, u32::from(entries) * 16, INDIRECT, 0);
    assert_eq!(offered(&mut driver, &mut guest, whole), Taken::Nonsense);
    driver.write(table + usize::from(entries - 2) * 16 + 12, &[0, 0]);
    assert_eq!(offered(&mut driver, &mut guest, whole), Taken::Frame(usize::from(CHAIN_MAX)));
}

#[test]
fn buffers_that_make_no_sense_cost_one_frame() {
    let mut driver = Driver::new(8);
    let mut guest = driver.guest(1, MODERN | feature::MRG_RXBUF);
    let end = GUEST + BYTES as u64;
    for (address, length, flags) in
        [(0, 1000, WRITE), (end - 100, 1000, WRITE), (GUEST, 1000, 0), (GUEST, 4, WRITE), (GUEST, 0, WRITE)]
    {
        driver.put_descriptor(RX, 0, &Driver::descriptor(address, length, flags, 0));
        driver.offer(RX, 0);
        let sent = send(&mut guest, VirtioNetHeader::default(), &frame(500));
        assert_eq!(sent, Err(Refused::Nonsense), "{address:#x} {length} {flags}");
        guest.publish();
        assert_eq!(driver.take_used(RX), [(0, 0)]);
    }
    driver.offer(RX, 9);
    assert_eq!(send(&mut guest, VirtioNetHeader::default(), &frame(500)), Err(Refused::Nonsense));
    post_buffers(&mut driver, 1, 1000);
    assert!(send(&mut guest, VirtioNetHeader::default(), &frame(500)).is_ok());
}

#[test]
fn more_chains_than_the_queue_has_break_it_for_good() {
    let driver = Driver::new(8);
    let mut guest = driver.guest(1, MODERN);
    driver.set_available(TX, 9);
    assert_eq!(guest.begin(0, 64), 0);
    assert_eq!(guest.take_broken(), 1);
    driver.set_available(TX, 1);
    assert_eq!((guest.begin(0, 64), guest.take_broken()), (0, 0), "it stays broken, and is told of once");
    driver.set_available(RX, 9);
    assert_eq!(send(&mut guest, VirtioNetHeader::default(), &frame(10)), Err(Refused::Broken));
    assert_eq!(guest.take_broken(), 1);
    // The driver starts anew: the queues are set up again.
    let mut driver = Driver::new(8);
    let mut guest = driver.guest(1, MODERN);
    post_frame(&mut driver, &frame(10));
    assert_eq!(take_all(&mut guest, 0).len(), 1);
}

#[test]
fn memory_that_is_truncated_costs_its_own_guest_only() {
    let (mut one, mut other) = (Driver::new(8), Driver::new(8));
    let (mut lost, mut kept) = (one.guest(1, MODERN), other.guest(1, MODERN));
    post_frame(&mut one, &frame(10));
    post_buffers(&mut one, 1, 1000);
    rustix::fs::ftruncate(&one.file, 0).unwrap();
    // Rings, descriptors and buffers are all gone: every access goes on with zeros.
    let _ = take_all(&mut lost, 0);
    let _ = send(&mut lost, VirtioNetHeader::default(), &frame(10));
    lost.publish();
    lost.publish();
    assert!(lost.is_lost() && !kept.is_lost());
    post_frame(&mut other, &frame(10));
    assert_eq!(take_all(&mut kept, 0), [frame(10)]);
    drop(lost);
    // A later guest at the same place starts with a clean record.
    assert!(!Driver::new(8).guest(1, MODERN).is_lost());
}

#[test]
fn only_memory_files_of_the_right_size_are_mapped() {
    let driver = Driver::new(8);
    let refused = |lent: Lent, file: OwnedFd| Memory::map(vec![(lent, file)]).unwrap_err().to_string();
    let (lent, file) = driver.lent();
    let on_disk: OwnedFd = std::fs::File::open("/proc/self/status").unwrap().into();
    assert!(refused(lent, on_disk).contains("no memory file"));
    let clone = || file.try_clone().unwrap();
    assert!(refused(Lent { length: BYTES as u64 + 1, ..lent }, clone()).contains("are lent that has"));
    assert!(refused(Lent { offset: u64::MAX, ..lent }, clone()).contains("no proper bounds"));
    assert!(refused(Lent { guest: u64::MAX, ..lent }, clone()).contains("no proper bounds"));
    assert!(refused(Lent { length: 0, ..lent }, clone()).contains("no proper bounds"));
    assert!(Memory::map(vec![]).unwrap_err().to_string().contains("1 to 32"));
}

#[test]
fn queues_outside_of_the_memory_are_refused() {
    let driver = Driver::new(8);
    let memory = driver.memory();
    let right = driver.addresses(0);
    let wrong = |size, addresses| Queue::new(&memory, size, addresses, false).unwrap_err();
    assert!(wrong(7, right).contains("power of two"));
    assert!(wrong(0, right).contains("power of two"));
    assert!(wrong(8, Addresses { descriptors: 0, ..right }).contains("table"));
    assert!(wrong(8, Addresses { descriptors: right.descriptors + 8, ..right }).contains("table"));
    assert!(wrong(8, Addresses { available: right.available + 1, ..right }).contains("available"));
    let last = super::super::driver::USER + BYTES as u64 - 64;
    assert!(wrong(8, Addresses { used: last, ..right }).contains("used"));
    assert!(wrong(8, Addresses { used: u64::MAX, ..right }).contains("used"));
}

/// Whatever is in the rings, the engine's side reads and writes only what was lent, and comes to an end.
#[test]
fn any_bytes_in_the_rings_are_survived() {
    check!().with_iterations(400).for_each(|bytes: &[u8]| {
        let mut driver = Driver::new(16);
        // Table, available ring and a buffer full of what may be tables.
        driver.write(0, &bytes[..bytes.len().min(256)]);
        driver.write(64 * 1024, &bytes[..bytes.len().min(256)]);
        let at = driver.buffer(4096);
        driver.write(at, &bytes[..bytes.len().min(4096)]);
        for (number, chunk) in bytes.chunks(4).take(16).enumerate() {
            let mut word = [0; 4];
            word[..chunk.len()].copy_from_slice(chunk);
            let [a, b, c, d] = word;
            let near = GUEST + at as u64 + u64::from(a) * 16;
            let (length, flags) = (u32::from(b) << (c & 7), u16::from(c >> 3 & 7));
            for queue in [RX, TX] {
                let bytes = Driver::descriptor(near, length, flags, u16::from(d) % 20);
                driver.put_descriptor(queue, number as u16, &bytes);
            }
            driver.offer(TX, u16::from(d) % 17);
            driver.offer(RX, u16::from(a) % 17);
        }
        let all = MODERN | feature::MRG_RXBUF | feature::EVENT_IDX | feature::GUEST_CSUM;
        let mut guest = driver.guest(1, all);
        let mut room = vec![0; 70_000];
        for _ in 0..4 {
            for _ in 0..guest.begin(0, 64) {
                if let Taken::Frame(bytes) = take(&mut guest, 0, &mut room) {
                    assert!(bytes > LONG && bytes <= room.len());
                }
            }
            guest.publish();
            let _ = send(&mut guest, VirtioNetHeader::default(), &frame(900));
            guest.publish();
            guest.ask_for_kicks(true);
        }
        assert!(driver.take_used(TX).len() <= 16 && !guest.is_lost());
    });
}
