use super::*;
use weir_base::codec::{decode, encode};
use weir_base::world::Rng;

fn polynomial(seed: u64, threshold: usize) -> Polynomial {
    let mut rng = Rng::new(seed);
    let mut randomness = |bytes: &mut [u8]| rng.fill(bytes);
    let secret = random_scalar(&mut randomness);
    Polynomial::random(secret, threshold, &mut randomness)
}

#[test]
fn a_commitment_tells_each_members_public_key() {
    for threshold in [1, 2, 3, 7] {
        let secret = polynomial(5, threshold);
        let commitment = secret.commitment().unwrap();
        assert_eq!(commitment.threshold(), threshold);
        assert_eq!(commitment.at_zero(), public(&secret.at(0)).unwrap());
        for member in [1, 2, 9, u32::MAX] {
            assert_eq!(commitment.at(member), public(&secret.at(member)).unwrap());
        }
    }
}

#[test]
fn weighted_commitments_commit_to_the_weighted_sum() {
    let (one, two) = (polynomial(1, 3), polynomial(2, 3));
    let (w1, w2) = (Scalar::from_u32(3), Scalar::from_u32(10));
    let (c1, c2) = (one.commitment().unwrap(), two.commitment().unwrap());
    let sum = Commitment::weighted(&[(w1.clone(), &c1), (w2.clone(), &c2)]);
    let share = w1.times(&one.at(4)).plus(&w2.times(&two.at(4)));
    assert_eq!(sum.at(4), public(&share).unwrap());
}

#[test]
fn commitments_survive_the_wire_and_bad_points_do_not() {
    let commitment = polynomial(3, 3).commitment().unwrap();
    assert_eq!(decode::<Commitment>(&encode(&commitment)).unwrap(), commitment);
    let mut bytes = encode(&commitment);
    bytes[40] ^= 1;
    assert!(decode::<Commitment>(&bytes).is_err());
    let infinity = BlsKey([std::array::from_fn(|at| if at == 0 { 0xc0 } else { 0 }), [0; 32], [0; 32]]);
    assert_eq!(Commitment::try_from(vec![infinity]), Err(TrustError::BadKey));
    assert!(Commitment::try_from(Vec::new()).is_err());
}

#[test]
fn any_bytes_decode_to_a_commitment_or_an_error() {
    bolero::check!().with_iterations(500).for_each(|bytes: &[u8]| {
        if let Ok(commitment) = decode::<Commitment>(bytes) {
            assert_eq!(encode(&commitment), bytes);
        }
    });
}
