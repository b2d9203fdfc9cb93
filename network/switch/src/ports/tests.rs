use super::*;

#[test]
fn a_super_frame_of_the_largest_size_fits_one_message() {
    for mtu in [576, 1280, 1400, 1500, 4000, 9000, 9216] {
        let size = gso_max_size(mtu);
        let payload = u32::from(mtu) - 52;
        let segments = size.div_ceil(payload);
        assert!(segments <= 64, "mtu {mtu}: {segments} segments");
        assert!(size + segments * SEGMENT_OVERHEAD <= MESSAGE_BYTES + payload, "mtu {mtu}");
        assert!(size > u32::from(mtu), "mtu {mtu}");
    }
}

#[test]
fn names_that_are_none_are_refused() {
    for name in ["", "a/b", "..", "/proc/1/ns/net"] {
        let error = in_namespace(Some(name), || ()).unwrap_err();
        assert!(matches!(error, PortError::BadNamespace(_)), "{name}: {error}");
    }
    for name in ["", "sixteen-bytes-xx", "a b", "a/b"] {
        assert!(matches!(tap::open(name, false), Err(PortError::BadDevice(_))), "{name}");
    }
    assert!(matches!(tap::open("weir-none", false), Err(PortError::NoDevice(_))));
}
