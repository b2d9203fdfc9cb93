//! Times as the protocol has them.

use super::*;

#[test]
fn times_that_the_protocol_does_not_have_are_the_nearest_that_it_has() {
    let at = |seconds: i64| {
        let since = Duration::from_secs(seconds.unsigned_abs());
        super::seconds(if seconds < 0 { UNIX_EPOCH - since } else { UNIX_EPOCH + since })
    };
    assert_eq!([-1_000_000, -1, 0, 1].map(at), [0, 0, 0, 1]);
    let last = i64::from(u32::MAX);
    assert_eq!(
        [last - 1, last, last + 1, 2 * last, 1 << 40].map(at),
        [u32::MAX - 1, u32::MAX, u32::MAX, u32::MAX, u32::MAX]
    );
    assert_eq!(time(Some(u32::MAX)), UNIX_EPOCH + Duration::from_secs(u32::MAX.into()));
    assert_eq!(time(None), UNIX_EPOCH);
}
