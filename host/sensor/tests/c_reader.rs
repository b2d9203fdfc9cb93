//! A C program reads through the header: what this crate publishes, and what hostile publishers claim.

use rustix::fs::{MemfdFlags, SealFlags, fcntl_add_seals, ftruncate, memfd_create};
use std::io::{BufRead, BufReader, Lines, Write};
use std::os::fd::AsRawFd;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};
use weir_sensor::{Directory, Kind, SensorBox, Shape, layout};

/// Reads commands, one a line, and answers each by one line.
const PROGRAM: &str = r#"
#include "weir_sensor_reader.h"
static unsigned long seen;
static void on_record(const sbrecord_t *record, void *context) {
    if (record->length > WEIR_SENSOR_VALUE_BYTES) abort();
    seen++;
    char *last = context;
    memcpy(last, record->value, record->length);
    last[record->length] = 0;
}
int main(int argc, char **argv) {
    char line[128], name[64], last[WEIR_SENSOR_VALUE_BYTES + 1] = "";
    sbview_t *view = NULL;
    sbfetched_t found;
    uint64_t value = 0;
    if (argc != 2) return 9;
    while (fgets(line, sizeof line, stdin)) {
        if (sscanf(line, "discover %63s", name) == 1) {
            sbclose(view);
            view = NULL;
            printf("%d\n", sbdiscover(argv[1], name, &view));
        } else if (!view) {
            puts("no view");
        } else if (sscanf(line, "value %63s", name) == 1) {
            int failed = sbvalue(view, sbfind(view, name), &value);
            if (failed) printf("%d\n", failed); else printf("%lu\n", (unsigned long)value);
        } else if (sscanf(line, "associate %63s", name) == 1) {
            printf("%d\n", sbassociate(view, sbfind(view, name), on_record, last));
        } else if (strcmp(line, "fetch\n") == 0) {
            seen = 0;
            sbfetch(view, &found);
            if (seen + found.unhandled != found.records) return 8;
            printf("%lu %lu %lu %s\n", seen, (unsigned long)found.lost, (unsigned long)found.lies, last);
        } else if (strcmp(line, "flush\n") == 0) {
            printf("%lu\n", (unsigned long)sbflush(view));
        } else if (strcmp(line, "closed\n") == 0) {
            printf("%d\n", sbclosed(view));
        } else if (strcmp(line, "race\n") == 0) {
            /* What a publisher writes meanwhile must not harm. */
            sbsensor_t sensor;
            for (int i = 0; i < 20000; i++) {
                sbfetch(view, &found);
                for (int j = -1; j < 4; j++)
                    if (sbsensor(view, j, &sensor) == 0 && strlen(sensor.name) > 47) return 7;
            }
            puts("unharmed");
        } else {
            puts("what?");
        }
        fflush(stdout);
    }
    sbclose(view);
    return 0;
}
"#;

/// The program that reads, run on a folder of boxes.
struct Reader {
    child: Child,
    input: ChildStdin,
    output: Lines<BufReader<ChildStdout>>,
}

impl Reader {
    fn start(folder: &Path, boxes: &Path) -> Result<Reader, String> {
        let program = compile(folder)?;
        let mut command = Command::new(program);
        // Looking for leaks needs ptrace, which not every machine grants.
        command.arg(boxes).env("ASAN_OPTIONS", "detect_leaks=0");
        let mut child = command.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().unwrap();
        let (input, output) = (child.stdin.take().unwrap(), child.stdout.take().unwrap());
        Ok(Reader { child, input, output: BufReader::new(output).lines() })
    }

    fn ask(&mut self, line: &str) -> String {
        writeln!(self.input, "{line}").unwrap();
        self.output.next().unwrap_or_else(|| panic!("it ended at '{line}'")).unwrap()
    }

    fn end(mut self) {
        drop(self.input);
        let status = self.child.wait().unwrap();
        assert!(status.success(), "{status}");
    }
}

fn compile(folder: &Path) -> Result<PathBuf, String> {
    let (source, program) = (folder.join("read.c"), folder.join("read"));
    std::fs::write(&source, PROGRAM).unwrap();
    let include = concat!(env!("CARGO_MANIFEST_DIR"), "/include");
    let compiled = |more: &[&str]| {
        let mut cc = Command::new("cc");
        cc.args(["-std=gnu11", "-Wall", "-Wextra", "-Werror", "-O2", "-g", "-I", include]).args(more);
        cc.arg("-o").args([&program, &source]).output().map_err(|error| format!("no C compiler ({error})"))
    };
    // Where the compiler brings them, sanitizers watch every access.
    let checked = compiled(&["-fsanitize=address,undefined", "-fno-sanitize-recover=all"])?;
    if !checked.status.success() {
        let plain = compiled(&[])?;
        assert!(plain.status.success(), "{}", String::from_utf8_lossy(&plain.stderr));
    }
    Ok(program)
}

#[test]
fn a_c_program_reads_what_is_published() {
    let folder = tempfile::tempdir().unwrap();
    let boxes = folder.path().join("boxes");
    let made = SensorBox::create("web", Shape { sensors: 4, records: 16 }, 1_000_000).unwrap();
    let requests = made.add("requests", Kind::Counter).unwrap();
    let errors = made.add("errors", Kind::Event).unwrap();
    let other = made.add("other", Kind::Event).unwrap();
    made.export(&Directory::new(&boxes)).unwrap();
    let mut reader = match Reader::start(folder.path(), &boxes) {
        Ok(reader) => reader,
        Err(reason) => return println!("NOT RUN a_c_program_reads_what_is_published: {reason}"),
    };
    assert_eq!(reader.ask("discover nobody"), "-2");
    assert_eq!(reader.ask("fetch"), "no view");
    assert_eq!(reader.ask("discover ../web"), "-22");
    assert_eq!(reader.ask("discover web"), "0");
    made.count(requests, 41);
    made.count(requests, 1);
    assert_eq!(reader.ask("value requests"), "42");
    assert_eq!(reader.ask("value nothing"), "-22");
    assert_eq!(reader.ask("associate errors"), "0");
    assert_eq!(reader.ask("associate nothing"), "-22");
    assert!(
        made.record(errors, b"first") && made.record(other, b"unheard") && made.record(errors, b"second")
    );
    assert_eq!(reader.ask("fetch"), "2 0 0 second");
    assert_eq!(reader.ask("fetch"), "0 0 0 second", "each is handed out once");
    for number in 0..40 {
        made.record(errors, format!("{number}").as_bytes());
    }
    assert_eq!(reader.ask("fetch"), "16 24 0 39", "what the ring has no room for is counted");
    made.record(errors, b"skipped");
    assert_eq!((reader.ask("flush"), reader.ask("fetch")), ("1".into(), "0 0 0 39".into()));
    assert_eq!(reader.ask("closed"), "0");
    made.destroy();
    assert_eq!(reader.ask("closed"), "1", "the memory stays readable");
    assert_eq!(reader.ask("discover web"), "-2");
    reader.end();
}

/// The bytes of a sound box with one record.
fn sound() -> Vec<u8> {
    let made = SensorBox::create("sound", Shape { sensors: 2, records: 16 }, 1).unwrap();
    let sensor = made.add("event", Kind::Event).unwrap();
    made.record(sensor, b"value");
    let file = std::fs::File::from(made.memory().try_clone_to_owned().unwrap());
    let mut bytes = vec![0; Shape { sensors: 2, records: 16 }.bytes()];
    file.read_exact_at(&mut bytes, 0).unwrap();
    bytes
}

/// Registers a memory with these bytes, as a hostile publisher would.
fn register(boxes: &Path, name: &str, bytes: &[u8], seals: SealFlags) -> std::fs::File {
    let file = memfd_create("hostile", MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING).unwrap();
    ftruncate(&file, bytes.len() as u64).unwrap();
    let file = std::fs::File::from(file);
    file.write_all_at(bytes, 0).unwrap();
    fcntl_add_seals(&file, seals).unwrap();
    claim(boxes, name, &format!("{} {}\n", std::process::id(), file.as_raw_fd()));
    file
}

fn claim(boxes: &Path, name: &str, text: &str) {
    std::fs::create_dir_all(boxes).unwrap();
    std::fs::write(boxes.join(format!("{name}.box")), text).unwrap();
}

fn with(changes: &[(usize, u64)]) -> Vec<u8> {
    let mut bytes = sound();
    for (at, value) in changes {
        bytes[*at..at + 8].copy_from_slice(&value.to_ne_bytes());
    }
    bytes
}

#[test]
fn a_hostile_publisher_neither_harms_nor_misleads_a_c_program() {
    let folder = tempfile::tempdir().unwrap();
    let boxes = folder.path().join("boxes");
    let mut reader = match Reader::start(folder.path(), &boxes) {
        Ok(reader) => reader,
        Err(reason) => {
            return println!("NOT RUN a_hostile_publisher_neither_harms_nor_misleads_a_c_program: {reason}");
        }
    };
    let (not_permitted, no_box) = ("-1", "-71");
    // Memory that may shrink, or that cannot be sealed.
    let _open = register(&boxes, "open", &sound(), SealFlags::GROW);
    assert_eq!(reader.ask("discover open"), not_permitted);
    // Lying sizes and marks, and memory that is too short.
    let header = |word: usize| word * 8;
    for (word, value) in [
        (layout::header::SENSORS, u64::MAX),
        (layout::header::SENSORS, 0),
        (layout::header::SENSORS, 4096),
        (layout::header::RECORDS, 1 << 20),
        (layout::header::RECORDS, 17),
        (layout::header::RECORDS, 1 << 63),
        (layout::header::VERSION, 2),
        (layout::header::MAGIC, 0),
    ] {
        let _kept = register(&boxes, "lying", &with(&[(header(word), value)]), SealFlags::SHRINK);
        assert_eq!(reader.ask("discover lying"), no_box, "word {word} = {value}");
    }
    let _short = register(&boxes, "short", &sound()[..sound().len() - 8], SealFlags::SHRINK);
    let _tiny = register(&boxes, "tiny", &[0; 64], SealFlags::SHRINK);
    assert_eq!((reader.ask("discover short"), reader.ask("discover tiny")), (no_box.into(), no_box.into()));
    // Registrations that are none, or lead elsewhere.
    for text in ["", "1", "x y\n", "1 2 3\n", "99999999999 1\n", "-1 4\n", "0 0\n", &"9".repeat(200)] {
        claim(&boxes, "evil", text);
        let answer: i32 = reader.ask("discover evil").parse().unwrap();
        assert!(answer < 0, "{text}: {answer}");
    }
    let (pipe, _other) = std::io::pipe().unwrap();
    claim(&boxes, "pipe", &format!("{} {}\n", std::process::id(), pipe.as_raw_fd()));
    assert_eq!(reader.ask("discover pipe"), no_box);

    // A length over 40, a head that jumps, a head that goes back.
    let ring = 4096 + 2 * 128;
    let long = with(&[(ring + 16, 41 << 32)]);
    let _long = register(&boxes, "long", &long, SealFlags::SHRINK);
    assert_eq!(reader.ask("discover long"), "0");
    assert_eq!(reader.ask("fetch"), "0 0 1 ");
    let jumps = register(&boxes, "jumps", &sound(), SealFlags::SHRINK);
    let set = |head: u64| jumps.write_all_at(&head.to_ne_bytes(), layout::header::HEAD as u64 * 8).unwrap();
    assert_eq!(reader.ask("discover jumps"), "0");
    assert_eq!(reader.ask("associate event"), "0");
    assert_eq!(reader.ask("fetch"), "1 0 0 value");
    set(u64::MAX);
    let lost: u64 = reader.ask("fetch").split(' ').nth(1).unwrap().parse().unwrap();
    assert!(lost > u64::MAX - 100, "{lost}");
    set(3);
    assert_eq!(reader.ask("fetch"), "0 0 1 value");

    // Writes that race with the reads.
    let racing = register(&boxes, "racing", &sound(), SealFlags::SHRINK);
    assert_eq!(reader.ask("discover racing"), "0");
    let stop = std::sync::atomic::AtomicBool::new(false);
    std::thread::scope(|scope| {
        scope.spawn(|| {
            let words = racing.metadata().unwrap().len() / 8;
            let mut state = 88172645463325252_u64;
            while !stop.load(std::sync::atomic::Ordering::Relaxed) {
                state ^= state << 13;
                state ^= state >> 7;
                state ^= state << 17;
                racing.write_all_at(&state.to_ne_bytes(), (state % words) * 8).unwrap();
            }
        });
        let answer = reader.ask("race");
        stop.store(true, std::sync::atomic::Ordering::Relaxed);
        assert_eq!(answer, "unharmed");
    });
    reader.end();
}
