//! Certificates where operators sign what they order: they count by the word of their owners' keys, and no controller lets in, shuts out or
//! makes the tables grow by them.

use super::*;
use crate::core::operators::founding;
use weir_model::event::NewRule;
use weir_model::operator::{OperatorFacts, OperatorRole};
use weir_trust::owner::sign_owner;

fn certificate(number: u8, by: Option<&KeyPair>) -> Certified {
    let owner = by.map(|by| sign_owner(by, &label("d"), &host(), &[number; 32]));
    Certified { key: [number; 32], until_s: 100, owner }
}

impl World {
    fn takes(&self, shown: &Certified) -> Result<(), Unauthentic> {
        self.core.registered().takes_certificate(&label("d"), &host(), shown)
    }

    fn begin(&mut self, by: u8) {
        let admin = OperatorFacts { role: OperatorRole::Admin, keys: vec![key(40).public()] };
        let founders = [(label("anna"), admin)].into();
        self.decided(by, founding(&founders).unwrap());
    }

    fn rule(&mut self, by: u8) -> Outcome {
        self.says(controller(by), &key(by), EventBody::Rule(NewRule::OwnersCertificates))
    }
}

#[test]
fn a_certificate_counts_by_the_word_of_the_identity_that_the_order_knows() {
    let mut world = World::new(1, true);
    let (old, new, thief) = (key(50), key(51), key(52));
    world.joins(&old);
    assert!(matches!(world.rule(1), Outcome::Rejected(_)), "it is for domains whose operators sign");
    world.decided(1, certified(1, 100));
    world.begin(1);
    world.decided(1, certified(2, 100));
    assert!(matches!(world.rule(1), Outcome::Committed(_)));
    let dropped = |outcome: Outcome| assert_eq!(outcome, Outcome::Unauthentic(Unauthentic::Unowned));
    for _ in 0..2 {
        assert_eq!(world.takes(&certificate(9, Some(&old))), Ok(()));
        // What the authority's key alone makes, whoever has it.
        for evil in [None, Some(&thief), Some(&new)] {
            assert_eq!(world.takes(&certificate(9, evil)), Err(Unauthentic::Unowned));
        }
        // The word for another key.
        let other = Certified { key: [8; 32], ..certificate(9, Some(&old)) };
        assert_eq!(world.takes(&other), Err(Unauthentic::Unowned));
        // Told before the rule.
        assert_eq!(
            (world.takes(&certificate(1, None)), world.takes(&certificate(2, None))),
            (Ok(()), Ok(()))
        );
        let digest = world.core.store().digest();
        let nobody = SourceId::of_actuator(&label("nobody"));
        for number in 3..40 {
            dropped(world.about(1, certified(number, 100)));
            dropped(
                world.about(
                    1,
                    IdentityEvent::Certified { whose: nobody.clone(), key: [number; 32], until_s: 1 },
                ),
            );
        }
        assert_eq!(world.core.store().digest(), digest, "nothing grows");
        assert_eq!(world.takes(&certificate(2, None)), Ok(()), "nobody is shut out");
        world.again(1, true);
    }

    // While the keys change both are taken; then those of the old one are over, and those that controllers told.
    world.decided(1, rotation(&old, &new));
    for by in [&old, &new] {
        assert_eq!(world.takes(&certificate(9, Some(by))), Ok(()));
    }
    assert_eq!(world.takes(&certificate(1, None)), Ok(()));
    world.decided(1, settled(&new));
    for _ in 0..2 {
        assert_eq!(world.takes(&certificate(9, Some(&new))), Ok(()));
        assert_eq!(world.takes(&certificate(9, Some(&old))), Err(Unauthentic::Unowned));
        for told in [1, 2] {
            assert_eq!(world.takes(&certificate(told, None)), Err(Unauthentic::Unowned));
        }
        world.again(1, true);
    }
}

#[test]
fn who_has_not_joined_is_no_matter_of_its_certificate() {
    let mut world = World::new(1, true);
    world.begin(1);
    assert!(matches!(world.rule(1), Outcome::Committed(_)));
    assert!(matches!(world.rule(1), Outcome::Committed(_)), "said again it changes nothing");
    assert_eq!(world.takes(&certificate(9, None)), Ok(()));
}
