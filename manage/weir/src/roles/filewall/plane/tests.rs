//! A FileWall passes what every actuator must pass.

use super::*;
use std::path::Path;
use weir_actuator::suite::Subject;
use weir_model::Label;
use weir_model::filewall::PolicyFile;

struct Walls;

fn files(text: String) -> Vec<u8> {
    let files = vec![PolicyFile { name: "policy.yaml".into(), text }];
    serde_json::to_vec(&Spec { files }).unwrap()
}

impl Subject for Walls {
    type Actuator = Wall;

    fn make(&self, folder: &Path) -> Wall {
        let orders = Orders { wall: Label::new("wall").unwrap(), folder: folder.join("policies") };
        Wall::new(orders).unwrap()
    }

    fn names(&self) -> [String; 2] {
        ["wall".into(), "other".into()]
    }

    fn spec(&self, number: u32) -> Vec<u8> {
        files(format!("kind: statistics\n# {number}\n"))
    }

    fn refused(&self) -> Vec<u8> {
        files("kind: nonsense\n".into())
    }

    /// What is in the folder, where it is read from.
    fn in_force(&self, wall: &mut Wall, name: &str) -> Option<Vec<u8>> {
        let text = std::fs::read_to_string(wall.orders.folder.join("policy.yaml")).ok()?;
        (name == wall.orders.wall.as_str()).then(|| files(text))
    }

    const KEEPS_WITHDRAWN: bool = true;
}

weir_actuator::suite!(Walls);
