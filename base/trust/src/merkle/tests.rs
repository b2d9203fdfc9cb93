use super::*;

#[test]
fn every_leaf_is_under_its_root_and_nowhere_else() {
    for count in 1..40_u32 {
        let leaves: Vec<Digest> = (0..count).map(|i| leaf_hash(&i.to_le_bytes())).collect();
        let tree = Tree::new(leaves.clone());
        for leaf in 0..count {
            let path = tree.path(leaf as usize);
            let hash = leaves[leaf as usize];
            assert!(is_under(&tree.root(), count, leaf, hash, &path), "{leaf} of {count}");
            assert!(!is_under(&tree.root(), count, (leaf + 1) % count.max(2), hash, &path));
            assert!(!is_under(&tree.root(), count, leaf, leaf_hash(b"other"), &path));
            let longer = [path.clone(), vec![hash]].concat();
            assert!(!is_under(&tree.root(), count, leaf, hash, &longer));
            if let Some((_, shorter)) = path.split_last() {
                assert!(!is_under(&tree.root(), count, leaf, hash, shorter));
            }
        }
    }
}

#[test]
fn a_node_is_no_leaf() {
    let leaves = vec![leaf_hash(b"a"), leaf_hash(b"b")];
    let joined = [leaves[0], leaves[1]].concat();
    assert_ne!(leaf_hash(&joined), Tree::new(leaves).root());
}
