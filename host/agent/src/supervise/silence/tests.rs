use super::*;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use tokio::net::UnixListener;
use weir_model::local::Answer;

const LIMIT: Duration = Duration::from_millis(200);

/// Accepts, and answers while it is told to.
async fn serve(listener: UnixListener, answers: Arc<AtomicBool>) {
    let mut silent = Vec::new();
    while let Ok((mut stream, _)) = listener.accept().await {
        let asked: ToSwitch = read_frame(&mut stream).await.unwrap();
        let ToSwitch::Ask { id, .. } = asked else { panic!("{asked:?}") };
        if answers.load(Ordering::SeqCst) {
            let answer = Answer::Connections(Vec::new());
            write_frame(&mut stream, &FromSwitch::Answer { id, answer }).await.unwrap();
        } else {
            silent.push(stream);
        }
    }
}

#[tokio::test]
async fn only_who_does_not_answer_is_silent() {
    let directory = tempfile::tempdir().unwrap();
    let socket = directory.path().join("control.sock");
    let lock = directory.path().join("switch.lock");
    assert!(!answers(&socket, LIMIT).await, "nobody is there");
    let talks = Arc::new(AtomicBool::new(true));
    tokio::spawn(serve(UnixListener::bind(&socket).unwrap(), talks.clone()));
    let mut silence = pin!(wait(&socket, &lock, Some(LIMIT)));
    let early = tokio::time::timeout(8 * LIMIT, &mut silence).await;
    assert!(early.is_err(), "it answers");
    talks.store(false, Ordering::SeqCst);
    silence.await;
}

#[tokio::test]
async fn who_closes_the_stream_lives() {
    let directory = tempfile::tempdir().unwrap();
    let socket = directory.path().join("control.sock");
    let listener = UnixListener::bind(&socket).unwrap();
    tokio::spawn(async move { while listener.accept().await.is_ok() {} });
    assert!(answers(&socket, Duration::from_secs(60)).await);
}

#[test]
fn a_debugger_is_seen() {
    let own = std::fs::read_to_string("/proc/self/status").unwrap();
    assert!(own.lines().any(|line| line.starts_with("TracerPid:")), "the system tells it");
    assert!(has_tracer("Name:\tweir\nTracerPid:\t4711\nUid:\t0\n"));
    assert!(!has_tracer("Name:\tweir\nTracerPid:\t0\nUid:\t0\n"));
}
