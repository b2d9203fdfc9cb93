use super::*;

fn random(seed: u8) -> Scalar {
    Scalar::from_random(&[seed; 48])
}

#[test]
fn the_laws_of_a_field_hold() {
    let (a, b, c) = (random(1), random(2), random(3));
    assert_eq!(a.plus(&b), b.plus(&a));
    assert_eq!(a.times(&b.plus(&c)), a.times(&b).plus(&a.times(&c)));
    assert_eq!(a.plus(&b).minus(&b), a);
    assert_eq!(a.times(&a.inverse()), Scalar::from_u32(1));
    assert!(a.minus(&a).is_zero());
    assert_eq!(a.plus(&Scalar::from_u32(0)), a);
}

#[test]
fn bytes_are_big_endian_and_canonical() {
    let mut seven = [0; 32];
    seven[31] = 7;
    assert_eq!(Scalar::from_u32(7).to_bytes(), seven);
    assert_eq!(Scalar::from_bytes(&random(9).to_bytes()), Some(random(9)));
    assert_eq!(Scalar::from_bytes(&[0xff; 32]), None);
}

#[test]
fn weights_give_the_value_at_zero() {
    // 5 + 3x + 2x^2 at 2, 7 and 11.
    let value = |x: u32| Scalar::from_u32(5 + 3 * x + 2 * x * x);
    let members = [2, 7, 11];
    let sum = members
        .iter()
        .zip(weights_at_zero(&members))
        .fold(Scalar::from_u32(0), |sum, (x, weight)| sum.plus(&weight.times(&value(*x))));
    assert_eq!(sum, Scalar::from_u32(5));
}

#[test]
fn a_secret_is_not_printed() {
    assert_eq!(format!("{:?}", random(1)), "Scalar(secret)");
}
