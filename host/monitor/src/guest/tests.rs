use super::btf::Btf;
use super::kallsyms::Tokens;
use super::memory::{GuestMemory, Space};
use super::vmcoreinfo::VmCoreInfo;
use super::*;
use std::io::Write;

#[test]
fn the_running_kernels_own_btf_is_read() {
    match std::fs::read("/sys/kernel/btf/vmlinux") {
        Ok(bytes) => {
            let members = Btf::parse(&bytes).unwrap().members("task_struct").unwrap();
            let fields = fields(&Btf::parse(&bytes).unwrap()).unwrap();
            assert_eq!(fields.tgid, fields.pid + 4);
            assert!(members["comm"].is_multiple_of(8) && members.len() > 100);
            assert!(Btf::parse(&bytes).unwrap().members("no_such_struct").is_err());
        }
        Err(error) => println!("NOT RUN the_running_kernels_own_btf_is_read: {error}"),
    }
}

#[test]
fn vmcoreinfo_has_symbols_and_numbers() {
    let info = VmCoreInfo::parse(
        b"OSRELEASE=6.1.0-56\nSYMBOL(a)=ffffffff81000000\nNUMBER(b)=-16777216\nKERNELOFFSET=1a000000\nnoise\n\0left",
    );
    assert_eq!((info.release.as_str(), info.kernel_offset), ("6.1.0-56", 0x1a00_0000));
    assert_eq!(info.number("SYMBOL(a)").unwrap(), 0xffff_ffff_8100_0000);
    assert_eq!(info.number("NUMBER(b)").unwrap(), (-16_777_216_i64) as u64);
    assert!(info.number("SYMBOL(c)").is_err());
}

#[test]
fn names_are_made_of_tokens() {
    let tokens = Tokens::new(b"T\0init_\0task\0".to_vec(), vec![0, 2, 8]);
    let mut name = Vec::new();
    assert_eq!(tokens.name(&[3, 0, 1, 2, 9], &mut name), Some(4));
    assert_eq!(name, b"Tinit_task");
    assert_eq!(tokens.name(&[0x82, 0, 1, 2], &mut name), Some(4), "a long length");
    assert_eq!(tokens.name(&[5, 0], &mut name), None);
    assert_eq!(tokens.name(&[1, 77], &mut name), Some(2));
    assert!(name.is_empty());
}

/// A memory of some pages with words at addresses.
fn memory(pages: usize, words: &[(usize, u64)]) -> (tempfile::NamedTempFile, GuestMemory) {
    let mut bytes = vec![0; pages * 4096];
    for (at, word) in words {
        bytes[*at..*at + 8].copy_from_slice(&word.to_le_bytes());
    }
    let mut file = tempfile::NamedTempFile::new().unwrap();
    file.write_all(&bytes).unwrap();
    let memory = GuestMemory::open(file.path()).unwrap();
    (file, memory)
}

#[test]
fn addresses_go_through_page_tables() {
    // Four tables in pages 1 to 4; the first entry of each leads on; page 5 holds the data.
    let (_file, memory) = memory(
        600,
        &[
            (4096, 2 << 12 | 1),
            (2 << 12, 3 << 12 | 1),
            (3 << 12, 4 << 12 | 1),
            (4 << 12, 5 << 12 | 1),
            (5 << 12, 42),
            // A second gigabyte entry: 2 MiB pages, of which the first lies at 2 MiB.
            (3 << 12 | 8, (2 << 20) | 1 | 1 << 7),
            (2 << 20, 43),
        ],
    );
    let space = Space { page_tables: 4096, levels: 4, direct_map: 0 };
    assert_eq!(memory.word(&space, 0), Some(42));
    assert_eq!(memory.word(&space, 2 << 20), Some(43));
    assert_eq!(memory.word(&space, 4096), None, "not present");
    assert_eq!(memory.word(&space, u64::MAX - 3), None);
    let direct = Space { direct_map: 1 << 40, ..space };
    assert_eq!(memory.word(&direct, (1 << 40) + (5 << 12)), Some(42));
}

#[test]
fn a_memory_without_a_kernel_is_refused() {
    let (file, _memory) = memory(16, &[]);
    assert!(Guest::find(file.path()).unwrap_err().to_string().contains("no Linux kernel"));
}

#[test]
fn any_bytes_are_read_without_harm() {
    let real = std::fs::read("/sys/kernel/btf/vmlinux").ok();
    bolero::check!().with_type::<(Vec<u8>, Vec<(u16, u8)>, [u8; 12])>().for_each(
        |(bytes, changes, start)| {
            if let Ok(btf) = Btf::parse(bytes) {
                drop(btf.members("task_struct"));
            }
            // The header of a real one, and a part of its types, with changes.
            if let Some(real) = &real {
                let mut bytes = real[..real.len().min(4096)].to_vec();
                bytes[8..20].copy_from_slice(start);
                bytes[12..16].copy_from_slice(&2400_u32.to_le_bytes());
                for (at, byte) in changes {
                    let at = 24 + usize::from(*at) % (bytes.len() - 24);
                    bytes[at] = *byte;
                }
                if let Ok(btf) = Btf::parse(&bytes) {
                    drop(btf.members("task_struct"));
                }
            }
            let info = VmCoreInfo::parse(bytes);
            drop(info.number("SYMBOL(kallsyms_names)"));
            let tokens = Tokens::new(bytes.clone(), bytes.iter().map(|byte| u16::from(*byte)).collect());
            tokens.name(bytes, &mut Vec::new());
        },
    );
}

#[test]
fn a_guest_that_points_anywhere_harms_nobody() {
    bolero::check!().with_type::<Vec<(u16, u64)>>().for_each(|words| {
        let places: Vec<(usize, u64)> =
            words.iter().take(200).map(|(at, word)| (usize::from(*at) % 2048 * 8, *word)).collect();
        let (_file, memory) = memory(4, &places);
        let space = Space { page_tables: 0, levels: 5, direct_map: 0x1000_0000 };
        let fields =
            Fields { tasks: 0, pid: 8, tgid: 12, comm: 16, parent: 32, switches: [40, 48], exit_state: 56 };
        let at = 0x1000_0000;
        let guest = Guest {
            memory,
            space,
            fields,
            init_task: at,
            jiffies: words.first().map_or(0, |(_, word)| *word),
            forks: at + 8,
            panic_cpu: Some(at + 12),
            release: String::new(),
            kernel_offset: 0,
        };
        let mut count = 0;
        guest.tasks(|_| count += 1);
        assert!(count <= TASKS_MAX);
        guest.progress();
        guest.panicked();
    });
}
