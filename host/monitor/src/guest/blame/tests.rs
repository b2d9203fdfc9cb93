use super::*;

/// Tasks from pairs of process and parent.
fn tasks(pairs: &[(u32, u32)]) -> Vec<Task> {
    let task = |(tgid, parent): &(u32, u32)| Task {
        address: 0,
        pid: *tgid,
        tgid: *tgid,
        parent: *parent,
        comm: [0; 16],
        switches: 0,
        ended: false,
    };
    pairs.iter().map(task).collect()
}

fn blamed(pairs: &[(u32, u32)]) -> Option<u32> {
    culprit(&tasks(pairs)).map(|task| task.tgid)
}

#[test]
fn the_tree_that_holds_half_of_the_processes_is_blamed() {
    let base = [(0, 0), (1, 0), (2, 0), (3, 2), (4, 2), (10, 1), (11, 1)];
    assert_eq!(blamed(&base), None);
    // A shell below a daemon that starts many.
    let mut many = base.to_vec();
    many.push((20, 11));
    many.extend((100..160).map(|process| (process, 20)));
    assert_eq!(blamed(&many), Some(20));
    // A chain: its first half is as guilty as all of it.
    let mut chain = base.to_vec();
    chain.extend((100..200).map(|process| (process, if process == 100 { 10 } else { process - 1 })));
    let blamed_of_chain = blamed(&chain).unwrap();
    assert!((100..200).contains(&blamed_of_chain), "{blamed_of_chain}");
    // Orphans of the first process: nobody in particular.
    let mut orphans = base.to_vec();
    orphans.extend((100..160).map(|process| (process, 1)));
    assert_eq!(blamed(&orphans), None);
    // Kernel threads never.
    let mut threads = base.to_vec();
    threads.extend((100..160).map(|process| (process, 2)));
    assert_eq!(blamed(&threads), None);
    assert_eq!(blamed(&[]), None);
}

#[test]
fn lists_with_circles_and_doubles_do_no_harm() {
    bolero::check!().with_type::<Vec<(u8, u8)>>().for_each(|pairs| {
        let pairs: Vec<(u32, u32)> = pairs.iter().map(|(a, b)| (u32::from(*a), u32::from(*b))).collect();
        if let Some(process) = blamed(&pairs) {
            assert!(process != INIT && pairs.iter().any(|(known, _)| *known == process));
        }
    });
}
