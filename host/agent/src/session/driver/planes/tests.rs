use super::*;
use weir_model::join::{TRUST_FILE, TrustFile};
use weir_model::{Change, Label, Update, Version};
use weir_trust::batch::{GroupSigner, SingleSigner, sign_batch};
use weir_trust::identity::KeyPair;

fn label(text: &str) -> Label {
    Label::new(text).unwrap()
}

fn group(seed: u8) -> SingleSigner {
    SingleSigner(KeyPair::from_seed(&[seed; 32]))
}

/// What a host has on its disk when it has joined.
fn joins(dir: &Path, domain: &str, seed: u8) {
    let trust = TrustFile {
        domain: label(domain),
        group_key: group(seed).group_key().to_hex(),
        epoch: 1,
        dataplane_secret: "00".repeat(16),
    };
    std::fs::write(dir.join(TRUST_FILE), serde_json::to_vec(&trust).unwrap()).unwrap();
    let member = join::Membership {
        name: label("h1"),
        role: weir_model::event::Role::Host,
        domain: label(domain),
        controllers: Vec::new(),
    };
    std::fs::write(dir.join("membership.json"), serde_json::to_vec(&member).unwrap()).unwrap();
    assert_eq!(join::membership(dir).unwrap(), Some(member));
}

fn list(domain: &str, seed: u8, version: u64) -> SignedUpdates {
    let update = Update {
        target: label("h1"),
        key: Key::Controllers,
        version: Version(version),
        expected: Version::ZERO,
        change: Change::Delete,
    };
    let signed = sign_batch(&group(seed), &label(domain), 1, Version(version), vec![update]);
    let (header, updates) = signed.unwrap();
    SignedUpdates { header, updates }
}

#[test]
fn the_list_of_another_group_is_forgotten_with_it() {
    let dir = tempfile::tempdir().unwrap();
    let dir = dir.path();
    joins(dir, "lab", 1);
    let keep = |proof: &SignedUpdates| std::fs::write(dir.join(PROOF_FILE), encode(proof)).unwrap();
    keep(&list("lab", 1, 900));
    let kept = read_proof(dir);
    assert_eq!(kept, Some(list("lab", 1, 900)));
    // It joins a domain of another name, and one of the same name that was made anew: both begin at low versions.
    for (domain, seed) in [("other", 1), ("lab", 2)] {
        joins(dir, domain, seed);
        let mut hub = Hub::with_proof(read_proof(dir));
        assert_eq!(hub.proof(), None);
        let now = list(domain, seed, 3);
        hub.route(now.clone());
        assert_eq!(hub.proof(), Some(&now));
    }
    std::fs::write(dir.join(PROOF_FILE), b"no proof").unwrap();
    assert_eq!(read_proof(dir), None);
}
