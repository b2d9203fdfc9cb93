//! Programs of which every call is seen (`--every-call`): those from places of no known form come by a signal.

use super::{built, injector, intercept_for, text};
use std::path::Path;
use std::process::Command;
use weir_intercept::{Calls, Injector};

fn every(injector: &Injector, program: &Path, arguments: &[&str]) -> String {
    let mut command = Command::new(program);
    text(&intercept_for(command.args(arguments), injector, Calls::Every).output().unwrap())
}

#[test]
fn calls_of_no_known_form_do_what_they_do() {
    let Some(injector) = injector("calls_of_no_known_form") else { return };
    let folder = tempfile::tempdir().unwrap();
    for linking in ["-pie", "-static"] {
        let program = built(folder.path(), "unknown", linking);
        // The second time with images of the files.
        for _ in 0..2 {
            assert_eq!(every(&injector, &program, &[]), "fine\n", "{linking}");
        }
    }
    let figures = injector.figures();
    assert!(figures.refused.is_empty(), "{figures:?}");
}

#[test]
fn handlers_and_shells_run_the_same() {
    let Some(injector) = injector("handlers_and_shells") else { return };
    let folder = tempfile::tempdir().unwrap();
    for linking in ["-pie", "-static"] {
        assert_eq!(every(&injector, &built(folder.path(), "signals", linking), &[]), "fine\n", "{linking}");
    }
    let script = "trap 'echo trapped' USR1; kill -USR1 $$; x=$(seq 1000 | sort -n | tail -1); echo $x; \
                  cat <(echo sub) | tr a-z A-Z; (exit 3); echo $?; /bin/echo end";
    for shell in [&["/bin/bash", "-c"][..], &["/bin/busybox", "sh", "-c"]] {
        if !Path::new(shell[0]).exists() {
            println!("NOT RUN handlers_and_shells: {} is not there", shell[0]);
            continue;
        }
        let script =
            if shell.len() == 2 { script } else { "for i in 3 1 2; do echo $i; done | sort; /bin/true" };
        let wanted = if shell.len() == 2 { "trapped\n1000\nSUB\n3\nend\n" } else { "1\n2\n3\n" };
        let arguments = [&shell[1..], &[script]].concat();
        assert_eq!(every(&injector, Path::new(shell[0]), &arguments), wanted);
    }
    let python = "import subprocess, threading\n\
                  t = [threading.Thread(target=lambda: [open('/proc/self/stat').read() for _ in range(500)]) for _ in range(8)]\n\
                  [x.start() for x in t]; [x.join() for x in t]\n\
                  print(subprocess.run(['/bin/echo', 'from echo'], capture_output=True, text=True).stdout, end='')";
    assert_eq!(every(&injector, Path::new("/usr/bin/python3"), &["-c", python]), "from echo\n");
}

#[test]
fn a_go_program_has_small_stacks() {
    let Some(injector) = injector("small_stacks") else { return };
    let folder = tempfile::tempdir().unwrap();
    let Some(program) = super::programs::go_program(folder.path()) else {
        return println!("NOT RUN small_stacks: there is no Go");
    };
    for _ in 0..5 {
        assert_eq!(every(&injector, &program, &[]), "4096\nfrom echo\n");
    }
}
