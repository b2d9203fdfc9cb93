//! What is on disk after each step, and what a start makes of it.

use super::*;
use crate::roles::controller::config::Given;
use weir_model::conversion::{Conversion, GroupOrder};
use weir_order::Position;

fn config(dir: &Path, group: &str) -> ControllerConfig {
    let text = format!(
        "stateDir: {}\napi: 127.0.0.1:7443\nsession: 127.0.0.1:7444\nadvertise: 192.0.2.1\n{group}",
        dir.display()
    );
    let file = dir.join("settings.yaml");
    std::fs::write(&file, text).unwrap();
    Given::read(&file).unwrap().check().unwrap()
}

fn ended() -> Ended {
    let listen = "192.0.2.1:7445".to_string();
    let conversion = Conversion { order: GroupOrder::Raft, member: 4, listen, wide: false };
    Ended { conversion, at: Position { term: 2, index: 17 }, state: vec![7; 3_000], epoch: 2 }
}

#[test]
fn each_step_that_a_crash_leaves_is_made_anew_until_the_mark_is_there() {
    let dir = tempfile::tempdir().unwrap();
    let dir = dir.path();
    let mut whole = config(dir, "");
    adopt(&mut whole).unwrap();
    assert_eq!(whole.group, None, "nothing says that it was converted");
    // Half of a folder, and a whole one without the mark.
    std::fs::create_dir(dir.join(NEW_FOLDER)).unwrap();
    std::fs::write(dir.join(NEW_FOLDER).join("snapshot.tmp"), "half").unwrap();
    go_on(&mut whole, &ended()).unwrap();
    let files = |folder: &str| {
        let mut names: Vec<_> =
            std::fs::read_dir(dir.join(folder)).unwrap().map(|f| f.unwrap().file_name()).collect();
        names.sort();
        names
    };
    let first = (std::fs::read_to_string(dir.join(MARK_FILE)).unwrap(), files(GROUP_FOLDER));
    assert!(!dir.join(NEW_FOLDER).exists());
    std::fs::remove_file(dir.join(MARK_FILE)).unwrap();
    let mut again = config(dir, "");
    go_on(&mut again, &ended()).unwrap();
    assert_eq!((std::fs::read_to_string(dir.join(MARK_FILE)).unwrap(), files(GROUP_FOLDER)), first);

    // From the mark on it is a member, with or without settings that say so.
    let group = again.group.clone().unwrap();
    assert_eq!((group.id, group.own.replica.as_str()), (4, "192.0.2.1:7445"));
    let mut bare = config(dir, "");
    adopt(&mut bare).unwrap();
    assert_eq!(bare.group, again.group);
    let mut said = config(dir, "group: {id: 4, listen: 192.0.2.1:7446, signatures: endorsed}");
    adopt(&mut said).unwrap();
    assert_eq!(said.group.unwrap().listen.port(), 7446, "the settings stand over it");
    let mut other = config(dir, "group: {id: 5, listen: 192.0.2.1:7445}");
    assert!(adopt(&mut other).unwrap_err().to_string().contains("became controller 4"));
    std::fs::write(dir.join(MARK_FILE), "{}").unwrap();
    assert!(adopt(&mut config(dir, "")).unwrap_err().to_string().contains("is damaged"));
}

#[test]
fn a_members_directory_is_not_begun_anew() {
    let dir = tempfile::tempdir().unwrap();
    let dir = dir.path();
    std::fs::create_dir(dir.join(GROUP_FOLDER)).unwrap();
    std::fs::write(dir.join(GROUP_FOLDER).join("kept"), "votes").unwrap();
    std::fs::write(dir.join("member"), "1\n").unwrap();
    let refused = go_on(&mut config(dir, ""), &ended()).unwrap_err().to_string();
    assert!(refused.contains("has no mark 'converted'"), "{refused}");
    assert_eq!(std::fs::read_to_string(dir.join(GROUP_FOLDER).join("kept")).unwrap(), "votes");
}

#[test]
fn the_key_of_the_name_before_is_put_aside_with_what_the_manifest_says_of_it() {
    let dir = tempfile::tempdir().unwrap();
    let dir = dir.path();
    std::fs::write(dir.join("domain"), "weir\n").unwrap();
    std::fs::write(dir.join("event.identity"), "07".repeat(32)).unwrap();
    manifest::record(dir, "weir");
    go_on(&mut config(dir, ""), &ended()).unwrap();
    assert!(!dir.join("event.identity").exists() && dir.join("event.identity.before").exists());
    assert_eq!(manifest::problems(dir, Some("weir")).unwrap(), Vec::<String>::new());
    manifest::record(dir, "weir");
    std::fs::remove_file(dir.join(MARK_FILE)).unwrap();
    let lost = manifest::problems(dir, Some("weir")).unwrap();
    assert_eq!(lost, ["'converted' is missing"], "without the mark nobody may take it for another directory");
}
