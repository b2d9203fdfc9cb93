//! The Python example, which knows the `.proto` only, against a real server.

use super::server::Server;
use std::process::Stdio;

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_python_example_runs() {
    let has = |module: &str| {
        let mut command = std::process::Command::new("python3");
        command.args(["-c", &format!("import {module}")]).stdout(Stdio::null()).stderr(Stdio::null());
        command.status().is_ok_and(|status| status.success())
    };
    for module in ["grpc", "grpc_tools.protoc"] {
        if !has(module) {
            println!(
                "NOT RUN the_python_example_runs: python3 has no module {module} (pip install grpcio grpcio-tools)"
            );
            return;
        }
    }
    let dir = tempfile::tempdir().unwrap();
    let server = Server::start(dir.path()).await;
    let example = concat!(env!("CARGO_MANIFEST_DIR"), "/../../examples/python/store.py");
    let run = tokio::process::Command::new("python3").arg(example).arg(server.address.to_string()).output();
    let output = run.await.unwrap();
    let (out, err) = (String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr));
    assert!(output.status.success(), "{out}{err}");
    for words in ["written at version", "conflict", "port 7", "counter was 0", "watched"] {
        assert!(out.contains(words), "'{words}' is not in {out}");
    }
}
