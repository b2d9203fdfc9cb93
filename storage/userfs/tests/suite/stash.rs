//! Positions of descriptors over exec: of a program alone, which says them to the next one in one piece; and ends of files that many write to.

use super::accelerated::{PYTHON, accelerated};
use std::os::unix::fs::PermissionsExt;

/// Each stage finds descriptors where the one before left them, by its first word how it goes on.
const STAGE: &str = r"
import fcntl, os, struct, sys
def real(name):
    # The kernel has the file: a lock is asked for. Inheritable from the beginning: that is a call on the descriptor too.
    f = os.open(name, os.O_RDONLY)
    os.set_inheritable(f, True)
    fcntl.fcntl(f, fcntl.F_GETLK, struct.pack('hhqqi', fcntl.F_RDLCK, 0, 0, 0, 0))
    return f
def at(f, place):
    assert os.lseek(f, 0, os.SEEK_CUR) == place, (sys.argv, f, os.lseek(f, 0, os.SEEK_CUR), place)
    assert os.read(f, 10) == bytes(range(place, place + 10)), (sys.argv, f)
stages = {
    'second': lambda *f: [at(g, 10) for g in f],
    'third': lambda *f: [at(g, 20) for g in f[::2]],
    'last': lambda *f: [at(g, 30 - 10 * (i % 2)) for i, g in enumerate(f)],
}
def become(what, *f):
    os.execv(sys.executable, [sys.executable, sys.argv[1], sys.argv[1], what, *map(str, f)])
stage = sys.argv[2] if len(sys.argv) > 2 else 'first'
files = [int(word) for word in sys.argv[3:]]
if stage == 'first':
    # By this way, so that the kernel holds nothing of it.
    with open('bytes', 'wb') as out:
        out.write(bytes(range(256)))
    files = [real('bytes') for _ in range(600)]
    for f in files:
        assert os.read(f, 10) == bytes(range(10))
    # Closed at the exec, and its number is taken by another file of the next program.
    gone = os.open('bytes', os.O_RDONLY)
    os.read(gone, 5)
    # What was said to a program that does not come is nothing.
    try:
        os.execv('bytes', ['bytes'])
    except PermissionError:
        at(files[0], 10)
        os.lseek(files[0], 10, os.SEEK_SET)
    become('second', *files)
stages[stage](*files)
if stage == 'second':
    become('third', *files)
if stage == 'third':
    # Half of them were not looked at here. A child shares all, looked at or not.
    child = os.fork()
    if child == 0:
        at(files[1], 20)
        os._exit(0)
    assert os.waitpid(child, 0)[1] == 0
    assert os.lseek(files[1], 0, os.SEEK_CUR) == 30
    os.lseek(files[1], 20, os.SEEK_SET)
    end = os.environ.get('WEIR_TEST_LAST')
    if end:
        os.execv(end, [end, sys.argv[1], 'last', *map(str, files)])
    become('last', *files)
if stage == 'last':
    new = os.open('bytes', os.O_RDONLY)
    assert os.read(new, 5) == bytes(range(5))
    print('fine')
";

#[test]
fn positions_go_over_exec_to_whoever_comes() {
    let Some(mut on) = accelerated("positions_over_exec") else { return };
    let script = on.on.root().join("stage.py");
    std::fs::write(&script, STAGE).unwrap();
    let output = on.command(PYTHON).arg(&script).arg(&script).output().unwrap();
    assert!(output.status.success() && output.stdout == b"fine\n", "{output:?}");
    let (reads, _) = on.served();
    // In the second stage and in the half of the third, each was still one that only this process has.
    assert!(reads >= 1500, "{reads} reads were served");
}

#[test]
fn positions_are_the_kernels_where_the_next_program_is_left_alone() {
    let Some(on) = accelerated("positions_left_alone") else { return };
    if !rustix::process::geteuid().is_root() {
        return println!("NOT RUN positions_left_alone: needs root to make a set-user-id program");
    }
    // That the interpreter of a script is set-user-id is seen when it has begun: the injector then settles.
    let folder = tempfile::tempdir().unwrap();
    let (interpreter, last) = (folder.path().join("python3"), folder.path().join("last"));
    std::fs::copy(PYTHON, &interpreter).unwrap();
    std::fs::set_permissions(&interpreter, std::fs::Permissions::from_mode(0o4755)).unwrap();
    std::fs::write(&last, format!("#!{}\n{STAGE}", interpreter.display())).unwrap();
    std::fs::set_permissions(&last, std::fs::Permissions::from_mode(0o755)).unwrap();
    let script = on.on.root().join("stage.py");
    std::fs::write(&script, STAGE).unwrap();
    let mut command = on.command(PYTHON);
    let output = command.arg(&script).arg(&script).env("WEIR_TEST_LAST", &last).output().unwrap();
    assert!(output.status.success() && output.stdout == b"fine\n", "{output:?}");
    let refused = on.refused();
    assert!(refused.keys().any(|reason| reason.contains("set-user-id")), "{refused:?}");
}

/// One line a call, each whole, of accelerated processes and of one through the kernel.
#[test]
fn appends_of_both_kinds_of_processes_do_not_overlap() {
    const LINES: usize = 400;
    const PROCESSES: usize = 4;
    let Some(on) = accelerated("appends_of_both_kinds") else { return };
    let script = format!(
        "import os, sys\nf = os.open('log', os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o666)\n\
         for i in range({LINES}):\n    line = ('%s-%d-' % (sys.argv[1], i)).ljust(20 + i % 50, 'x').encode() + b'\\n'\n    \
         assert os.write(f, line) == len(line)\n"
    );
    // It is there before: who makes a name that another one makes at the same moment may be told that it exists.
    std::fs::write(on.on.root().join("log"), "").unwrap();
    // Their output's end is waited for first: a parent in the injector's own process that waits for a child takes the
    // stops of it that the injector waits for.
    let mut children: Vec<_> = (0..PROCESSES).map(|name| (on.command(PYTHON), format!("a{name}"))).collect();
    let mut plain = std::process::Command::new(PYTHON);
    plain.current_dir(on.on.root());
    children.push((plain, "plain".to_owned()));
    let begin = |(mut command, name): (std::process::Command, String)| {
        command.args(["-c", &script, &name]).stdout(std::process::Stdio::piped()).spawn().unwrap()
    };
    let children: Vec<_> = children.into_iter().map(begin).collect();
    for child in children {
        let output = child.wait_with_output().unwrap();
        assert!(output.status.success(), "{output:?}");
    }
    let text = std::fs::read_to_string(on.on.root().join("log")).unwrap();
    let mut seen = std::collections::BTreeSet::new();
    for line in text.lines() {
        let mut words = line.split('-');
        let (name, number) = (words.next().unwrap(), words.next().unwrap().parse::<usize>().unwrap());
        let head = format!("{name}-{number}-");
        assert_eq!(line, format!("{head:x<width$}", width = 20 + number % 50), "a line is torn");
        assert!(seen.insert((name.to_owned(), number)), "{line} is there twice");
    }
    assert_eq!(seen.len(), LINES * (PROCESSES + 1));
}
