//! Policies of FileWalls that are ordered.

use super::*;
use weir_model::filewall::{PolicyFile, PolicyOrder, PolicySet, WALLS_MAX};

fn files(text: &str) -> Vec<PolicyFile> {
    vec![PolicyFile { name: "policy.yaml".into(), text: text.into() }]
}

fn order(host: &str, wall: &str, files: Option<Vec<PolicyFile>>) -> EventBody {
    EventBody::FileWall(PolicyOrder { actuator: label(host), wall: label(wall), files })
}

#[test]
fn policies_go_to_their_host_alone_and_the_newest_stand() {
    let mut cloud = Cloud::with_switches();
    for text in ["kind: statistics", "kind: read-only"] {
        let plan = cloud.decide(order("h1", "wall", Some(files(text)))).unwrap();
        assert_eq!(lines(&plan), ["+h1 filewall/h1/wall"]);
        let set = PolicySet { version: cloud.store.version(), files: files(text) };
        let key = Key::FileWall { host: label("h1"), wall: label("wall") };
        assert_eq!(cloud.entry("h1", key), Some(Entry::FileWall(set.clone())));
        assert_eq!(policies_of(&cloud.store, &label("h1")).collect::<Vec<_>>(), [("wall".into(), set)]);
    }
    let plan = cloud.decide(order("h1", "wall", None)).unwrap();
    assert_eq!(lines(&plan), ["-h1 filewall/h1/wall"]);
    assert!(cloud.decide(order("h1", "wall", None)).unwrap_err().to_string().contains("none are ordered"));
}

#[test]
fn what_cannot_be_ordered_is_refused_and_orders_go_with_their_host() {
    let mut cloud = Cloud::with_switches();
    let said = |cloud: &mut Cloud, body| cloud.decide(body).unwrap_err().to_string();
    assert!(said(&mut cloud, order("h9", "wall", Some(files("x")))).contains("no actuator of this name"));
    assert!(said(&mut cloud, order("h1", "wall", Some(Vec::new()))).contains("1 to 32 files"));
    for number in 0..WALLS_MAX {
        cloud.decide(order("h1", &format!("wall-{number}"), Some(files("x")))).unwrap();
    }
    assert!(said(&mut cloud, order("h1", "one-more", Some(files("x")))).contains("FileWalls of h1"));
    cloud.decide(EventBody::Removed { actuator: label("h1") }).unwrap();
    assert_eq!(policies_of(&cloud.store, &label("h1")).count(), 0);
}
