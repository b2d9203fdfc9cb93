//! Two of seven lie at once, each in its own way: five sign, and these are there.

use super::*;

#[test]
fn two_of_seven_lie_at_once_and_both_are_named() {
    use Traitor::*;
    let pairs = [
        [(1, LyingAggregator), (3, WrongShares)],
        // When the first is passed over, the next aggregator lies.
        [(1, SilentAggregator), (2, LyingAggregator)],
        [(3, WrongShares), (7, WrongShares)],
        [(2, WrongDeals), (5, WrongDeals)],
        [(4, Forger), (6, WrongShares)],
    ];
    for (number, pair) in pairs.into_iter().enumerate() {
        let mut world = World::new(700 + number as u64, 7);
        let deals = |(_, traitor): &(u32, Traitor)| *traitor == WrongDeals;
        // Before they lie about signatures they must have shares.
        world.traitors.extend(pair.into_iter().filter(deals));
        world.lead(4);
        world.form();
        world.sign(2);
        world.traitors.extend(pair);
        world.sign(10);
        let named = world.named();
        let lies = |member: u32| pair.iter().any(|(liar, _)| *liar == member);
        assert!(named.iter().all(|(member, _)| lies(*member)), "{pair:?}: {named:?}");
        for (liar, traitor) in pair {
            let expected = match traitor {
                WrongShares => FaultKind::BadSignatureShare,
                LyingAggregator => FaultKind::BadGroupSignature,
                WrongDeals => FaultKind::BadShare,
                // Nothing is wrong with what it says, or it says it of what nobody decided.
                SilentAggregator | Forger | WrongEndorsements => continue,
            };
            assert!(named.contains(&(liar, expected)), "{pair:?}: {named:?}");
        }
    }
}
