use super::*;
use crate::asked::Asked;
use crate::operator::{Operator, OperatorKey, now_ms};
use crate::said::{Signed, Statement, Word};
use std::os::unix::fs::PermissionsExt;
use std::process::{Command, Stdio};
use weir_model::Label;
use weir_model::event::{Event, EventBody, SourceId};
use weir_model::said::Said;
use weir_trust::identity::KeyPair;
use weir_trust::said::verify_said;

/// An agent of OpenSSH with one key, which ends with this.
struct Agent {
    dir: tempfile::TempDir,
    child: std::process::Child,
}

impl Agent {
    fn start(kind: &str) -> Agent {
        let dir = tempfile::tempdir().unwrap();
        let socket = dir.path().join("agent");
        let child =
            Command::new("ssh-agent").arg("-D").arg("-a").arg(&socket).stdout(Stdio::null()).spawn().unwrap();
        let agent = Agent { dir, child };
        while UnixStream::connect(&socket).is_err() {
            std::thread::sleep(Duration::from_millis(10));
        }
        agent.add(kind);
        agent
    }

    fn socket(&self) -> std::path::PathBuf {
        self.dir.path().join("agent")
    }

    fn add(&self, kind: &str) {
        let key = self.dir.path().join(kind);
        let made = Command::new("ssh-keygen")
            .args(["-q", "-N", "", "-C", "alice's", "-t", kind, "-f"])
            .arg(&key)
            .status();
        assert!(made.unwrap().success());
        std::fs::set_permissions(&key, std::fs::Permissions::from_mode(0o600)).unwrap();
        let added = Command::new("ssh-add").arg("-q").arg(&key).env(VARIABLE, self.socket()).status();
        assert!(added.unwrap().success());
    }
}

impl Drop for Agent {
    fn drop(&mut self) {
        let _ended = (self.child.kill(), self.child.wait());
    }
}

fn is_there(test: &str) -> bool {
    let there = ["ssh-agent", "ssh-add", "ssh-keygen"].iter().all(|program| {
        std::env::split_paths(&std::env::var_os("PATH").unwrap_or_default())
            .any(|dir| dir.join(program).exists())
    });
    if !there {
        println!("NOT RUN {test}: OpenSSH's agent is not installed");
    }
    there
}

#[test]
fn what_openssh_s_agent_signs_is_taken_as_what_a_key_in_a_file_signs() {
    if !is_there("what_openssh_s_agent_signs_is_taken_as_what_a_key_in_a_file_signs") {
        return;
    }
    let agent = Agent::start("ed25519");
    agent.add("ecdsa");
    let keys = keys(&agent.socket()).unwrap();
    let [AgentKey { public, comment }] = &keys[..] else { panic!("{keys:?}") };
    assert_eq!(comment, "alice's");
    let (alice, lab) = (Label::new("alice").unwrap(), Label::new("lab").unwrap());
    let key = OperatorKey::in_agent(alice.clone(), lab.clone(), public);
    let operator = Operator::with_agent(&key, &agent.socket()).unwrap();
    let body = EventBody::Removed { actuator: Label::new("h1").unwrap() };
    let statement = Statement::new(&lab, "operator/alice".to_owned(), now_ms(), &body);
    let Word::Signed(signed) = operator.sign(&statement, &Asked::event(body.clone())).unwrap() else {
        panic!()
    };
    let Signed { operator: name, number, made_ms, until_ms, signature } = *signed;
    let event = Event { source: SourceId::of_operator(&name), sequence: number, body };
    verify_said(public, &lab, &Said { event, made_ms, until_ms, signature }).unwrap();

    // A key that it has not, and an agent that is gone.
    let other = KeyPair::from_seed(&[9; 32]).public();
    assert!(sign(&agent.socket(), &other, b"x").unwrap_err().contains("refuses"));
    let key = OperatorKey::in_agent(alice, lab, &other);
    assert!(
        Operator::with_agent(&key, &agent.socket())
            .unwrap()
            .sign(&statement, &Asked::event(statement.body().unwrap()))
            .is_err()
    );
    let socket = agent.socket();
    drop(agent);
    assert!(super::keys(&socket).unwrap_err().contains("ssh-add -l"));
}

#[test]
fn an_agent_that_answers_what_it_likes_does_no_harm() {
    bolero::check!().with_iterations(20_000).for_each(|bytes: &[u8]| {
        let mut rest = bytes;
        let _ = number(&mut rest);
        let mut rest = bytes;
        let _ = string(&mut rest);
        if let Some(public) = of_blob(bytes) {
            assert_eq!(blob(&public), bytes);
        }
    });
    // A signature of another key is found before it is handed on; an answer without an end is not waited for.
    let dir = tempfile::tempdir().unwrap();
    let socket = dir.path().join("agent");
    let listener = std::os::unix::net::UnixListener::bind(&socket).unwrap();
    let answers: Vec<Vec<u8>> = vec![
        [
            &[0, 0, 0, 88][..],
            &[SIGN_RESPONSE],
            &83_u32.to_be_bytes(),
            &11_u32.to_be_bytes(),
            KIND,
            &64_u32.to_be_bytes(),
            &[7; 64],
        ]
        .concat(),
        vec![0xff; 4],
        vec![0; 4],
        vec![0, 0, 0, 1, 5],
        vec![0, 0, 0, 9, SIGN_RESPONSE, 0, 0, 0, 200, 1, 2, 3, 4],
    ];
    let serves = std::thread::spawn(move || {
        for answer in answers {
            let (mut stream, _) = listener.accept().unwrap();
            let mut head = [0; 4];
            stream.read_exact(&mut head).unwrap();
            let mut asked = vec![0; u32::from_be_bytes(head) as usize];
            stream.read_exact(&mut asked).unwrap();
            stream.write_all(&answer).unwrap();
        }
    });
    let lab = Label::new("lab").unwrap();
    let key = OperatorKey::in_agent(
        Label::new("alice").unwrap(),
        lab.clone(),
        &KeyPair::from_seed(&[9; 32]).public(),
    );
    let operator = Operator::with_agent(&key, &socket).unwrap();
    let body = EventBody::Removed { actuator: lab.clone() };
    let statement = Statement::new(&lab, "operator/alice".to_owned(), now_ms(), &body);
    for why in ["is not that of the key", "it has 4294967295 bytes", "it has 0 bytes", "refuses", "cut off"] {
        let error = operator.sign(&statement, &Asked::event(body.clone())).unwrap_err();
        assert!(error.contains(why), "{why}: {error}");
    }
    serves.join().unwrap();
}
