//! The Python example, which knows the `.proto` only, against a real server.

use super::server::Server;
use std::process::Stdio;

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_python_example_runs() {
    let works = |program: &str, arguments: &[&str]| {
        let mut command = std::process::Command::new(program);
        command.args(arguments).stdout(Stdio::null()).stderr(Stdio::null());
        command.status().is_ok_and(|status| status.success())
    };
    let debian = works("sh", &["-c", "command -v protoc && command -v grpc_python_plugin"]);
    // Debian's own has what Debian's packages bring, also where another one comes first.
    let python = ["python3", "/usr/bin/python3"].into_iter().find(|python| {
        works(python, &["-c", "import grpc"])
            && (debian || works(python, &["-c", "import grpc_tools.protoc"]))
    });
    let Some(python) = python else {
        println!(
            "NOT RUN the_python_example_runs: python3 has no grpc or no compiler for it (scripts/install-deps installs both)"
        );
        return;
    };
    let dir = tempfile::tempdir().unwrap();
    let server = Server::start(dir.path()).await;
    let example = concat!(env!("CARGO_MANIFEST_DIR"), "/../../examples/python/store.py");
    let run = tokio::process::Command::new(python).arg(example).arg(server.address.to_string()).output();
    let output = run.await.unwrap();
    let (out, err) = (String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr));
    assert!(output.status.success(), "{out}{err}");
    for words in ["written at version", "conflict", "port 7", "counter was 0", "watched"] {
        assert!(out.contains(words), "'{words}' is not in {out}");
    }
}
