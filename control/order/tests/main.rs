//! What a crash may and may not do to an order, the formats on disk, and hostile bytes.
#![allow(clippy::unwrap_used, clippy::expect_used)]

mod suite {
    mod canary;
    mod crash;
    mod format;
    mod full_disk;
    mod fuzz;
    mod kill;
    mod machine;
    mod rot;
    mod witness;
}
