//! What a namespace shows.

use everleaf::{Direction, Namespace};
use std::ops::{Bound, ControlFlow};

/// All keys, in order.
pub(crate) fn keys(space: &Namespace) -> Vec<Vec<u8>> {
    let mut keys = Vec::new();
    let visit = |key: &[u8]| {
        keys.push(key.to_vec());
        ControlFlow::Continue(())
    };
    space.scan_keys(Bound::Unbounded, Direction::Forward, visit).unwrap();
    keys
}
