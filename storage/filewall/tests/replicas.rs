//! Several servers as one, under `kind: replication`: replicas that are lost, lag, come and go, and FileWalls that are killed.

use crate::files::{Client, Shared, files};
use crate::played::{ROOT, left_behind, mounts, until, wall_with_context};
use std::net::SocketAddr;
use std::path::Path;
use weir_base::journal::Journal;
use weir_filewall::proxy::FileWall;
use weir_filewall::wire::nfs3::Op;

const ROOT_UID: u32 = 0;

fn url(address: SocketAddr) -> String {
    format!("nfs://127.0.0.1/export?nfsport={}&mountport={}", address.port(), mounts())
}

fn policy(folder: &Path, replicas: &[&str]) {
    std::fs::write(folder.join("p.yaml"), format!("kind: replication\nreplicas: {replicas:?}\n")).unwrap();
}

/// Which replicas are live.
fn live(wall: &FileWall) -> Vec<bool> {
    wall.status().replicas.iter().map(|(_, live)| *live).collect()
}

fn trees_are_equal(servers: &[&Shared]) -> bool {
    let trees: Vec<_> = servers.iter().map(|files| files.lock().unwrap().tree()).collect();
    trees.windows(2).all(|pair| pair[0] == pair[1])
}

struct Stage {
    first: (SocketAddr, Shared),
    second: (SocketAddr, Shared),
    url: String,
    policies: tempfile::TempDir,
    context: tempfile::TempDir,
}

impl Stage {
    fn new() -> Stage {
        let (first, second) = (files(), files());
        let url = url(second.0);
        let (policies, context) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
        policy(policies.path(), &[&url]);
        Stage { first, second, url, policies, context }
    }

    fn wall(&self) -> FileWall {
        wall_with_context(self.first.0, self.policies.path(), self.context.path())
    }

    /// One whose replicas have been compared, and are live.
    fn whole_wall(&self) -> FileWall {
        let wall = self.wall();
        until("all replicas to be live", || live(&wall).iter().all(|live| *live));
        wall
    }

    /// Another one, when the first was killed.
    fn wall_again(&mut self) -> FileWall {
        self.context = left_behind(self.context.path());
        self.wall()
    }

    fn root(&self, client: &mut Client) -> Vec<u8> {
        // What MOUNT gives is the number of the export's root.
        let came = client.mount();
        assert_ne!(came, ROOT);
        came
    }
}

#[test]
fn a_replica_that_is_lost_is_not_noticed_and_gets_what_it_has_missed() {
    let stage = Stage::new();
    let wall = stage.whole_wall();
    let mut client = Client::new(&wall, ROOT_UID);
    let root = stage.root(&mut client);
    let folder = client.handle(Op::Mkdir, &root, "folder");
    let file = client.handle(Op::Create, &folder, "file");
    assert_eq!(client.write(&file, "first").status, 0);
    assert!(trees_are_equal(&[&stage.first.1, &stage.second.1]));
    assert_eq!(live(&wall), [true, true]);
    // Either of them dies: reading and changing go on with the same handles.
    for (lost, other) in [(&stage.first.1, &stage.second.1), (&stage.second.1, &stage.first.1)] {
        lost.lock().unwrap().down = true;
        assert_eq!(client.write(&file, "while one was away").status, 0);
        assert_eq!(client.call(Op::Read, &file, None, None).data, b"while one was away");
        client.handle(Op::Create, &folder, "made meanwhile");
        assert_eq!(live(&wall).iter().filter(|live| **live).count(), 1);
        assert!(!trees_are_equal(&[lost, other]));
        lost.lock().unwrap().down = false;
        until("the rebuild", || live(&wall) == [true, true]);
        assert!(trees_are_equal(&[lost, other]));
        assert_eq!(client.call(Op::Remove, &folder, Some("made meanwhile"), None).status, 0);
    }
}

#[test]
fn a_replica_that_is_behind_is_not_read_from_when_filewall_begins_anew() {
    let mut stage = Stage::new();
    let wall = stage.whole_wall();
    let mut client = Client::new(&wall, ROOT_UID);
    let root = stage.root(&mut client);
    let file = client.handle(Op::Create, &root, "file");
    assert_eq!(client.write(&file, "old").status, 0);
    // It misses a change; then FileWall ends, and it is back before FileWall is.
    stage.first.1.lock().unwrap().down = true;
    assert_eq!(client.write(&file, "new").status, 0);
    drop((client, wall));
    stage.first.1.lock().unwrap().down = false;
    let wall = stage.wall_again();
    let mut client = Client::new(&wall, ROOT_UID);
    for _ in 0..3 {
        assert_eq!(client.call(Op::Read, &file, None, None).data, b"new");
    }
    until("the rebuild", || live(&wall) == [true, true]);
    assert!(trees_are_equal(&[&stage.first.1, &stage.second.1]));
    // The only one that has everything is not among the servers any more.
    stage.first.1.lock().unwrap().down = true;
    assert_eq!(client.write(&file, "newer").status, 0);
    drop((client, wall));
    policy(stage.policies.path(), &[]);
    let context = left_behind(stage.context.path());
    let start = || wall_with_context(stage.first.0, stage.policies.path(), context.path());
    let refused = std::panic::catch_unwind(std::panic::AssertUnwindSafe(start));
    assert!(refused.is_err(), "nothing is served that may be old");
}

#[test]
fn after_a_kill_in_the_middle_of_changes_one_replica_counts() {
    let mut stage = Stage::new();
    let wall = stage.whole_wall();
    let mut client = Client::new(&wall, ROOT_UID);
    let root = stage.root(&mut client);
    let file = client.handle(Op::Create, &root, "file");
    assert_eq!(client.write(&file, "both").status, 0);
    let names: Vec<String> = wall.status().replicas.into_iter().map(|(name, _)| name).collect();
    drop((client, wall));
    // Either of them may be away when FileWall is back: then the other one counts.
    for away in [None, Some(0)] {
        // What a kill leaves behind: a change has reached one of them only, and the other does not know.
        let page = format!("{{\"live\":{names:?},\"changing\":true}}");
        stage.context = left_behind(stage.context.path());
        let (mut book, _) = Journal::open(&stage.context.path().join("names.live")).unwrap();
        book.append(&[page.into_bytes()]).unwrap();
        let changed = stage.second.1.lock().unwrap().make(ROOT, "half done", 0, false);
        stage.first.1.lock().unwrap().down = away == Some(0);
        let again = stage.wall();
        assert_eq!(live(&again)[0], away.is_none());
        let mut client = Client::new(&again, ROOT_UID);
        assert_eq!(client.call(Op::Read, &file, None, None).data, b"both");
        stage.first.1.lock().unwrap().down = false;
        until("the comparison", || live(&again) == [true, true]);
        assert!(trees_are_equal(&[&stage.first.1, &stage.second.1]));
        assert_eq!(stage.second.1.lock().unwrap().objects.contains_key(&changed), away.is_some());
    }
}

#[test]
fn replicas_come_and_go_with_the_policy_while_clients_work() {
    let stage = Stage::new();
    let third = files();
    let third_url = url(third.0);
    let wall = stage.whole_wall();
    let mut client = Client::new(&wall, ROOT_UID);
    let root = stage.root(&mut client);
    let folder = client.handle(Op::Mkdir, &root, "folder");
    let file = client.handle(Op::Create, &folder, "file");
    assert_eq!(client.write(&file, "content").status, 0);
    // A new one gets what the others have, and loses what they have not.
    third.1.lock().unwrap().make(ROOT, "of before", 7, false);
    policy(stage.policies.path(), &[&stage.url, &third_url]);
    wall.reload().unwrap();
    until("the new replica", || live(&wall) == [true, true, true]);
    assert!(trees_are_equal(&[&stage.first.1, &stage.second.1, &third.1]));
    // One that is named no more is left alone.
    policy(stage.policies.path(), &[&third_url]);
    wall.reload().unwrap();
    assert_eq!(client.write(&file, "changed").status, 0);
    assert!(trees_are_equal(&[&stage.first.1, &third.1]));
    assert!(!trees_are_equal(&[&stage.first.1, &stage.second.1]));
    // Back again, it is behind.
    policy(stage.policies.path(), &[&stage.url, &third_url]);
    wall.reload().unwrap();
    until("its rebuild", || live(&wall) == [true, true, true]);
    assert!(trees_are_equal(&[&stage.first.1, &stage.second.1, &third.1]));
    // What cannot be changed while clients have handles, and what would leave nothing.
    std::fs::write(stage.policies.path().join("p.yaml"), "kind: statistics\n").unwrap();
    assert!(wall.reload().unwrap_err().to_string().contains("begins anew"));
    let twice = format!("kind: replication\nreplicas: [{0}, {0}]\n", stage.url);
    std::fs::write(stage.policies.path().join("p.yaml"), twice).unwrap();
    assert!(wall.reload().unwrap_err().to_string().contains("there twice"));
    for (server, down) in [(&stage.first, true), (&stage.second, false), (&third, false)] {
        server.1.lock().unwrap().down = down;
    }
    assert_eq!(client.write(&file, "without the first").status, 0);
    policy(stage.policies.path(), &[]);
    assert!(wall.reload().unwrap_err().to_string().contains("no replica that has everything"));
    assert_eq!(client.call(Op::Read, &file, None, None).data, b"without the first");
}
