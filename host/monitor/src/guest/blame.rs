//! Who is behind too many tasks in a guest: found in its own task list, from outside.

use super::Task;
use std::collections::BTreeMap;

/// Kernel threads are below this process; they are no culprits.
const KERNEL_THREADS: u32 = 2;
const INIT: u32 = 1;

/// The process furthest down whose tree has at least half of the guest's processes; nothing if that is the first one, whose
/// tree is the whole guest. `tasks` may be any list: a guest that lies about parents is blamed wrongly, and no more.
pub(super) fn culprit(tasks: &[Task]) -> Option<Task> {
    let places: BTreeMap<u32, usize> = tasks.iter().enumerate().map(|(at, task)| (task.tgid, at)).collect();
    let above = |at: usize| places.get(&tasks[at].parent).copied().filter(|above| *above != at);
    // Leaves first, so that each tree is counted before it is added to the one above; circles are never reached.
    let mut children = vec![0_u32; tasks.len()];
    for at in 0..tasks.len() {
        if let Some(above) = above(at) {
            children[above] += 1;
        }
    }
    let mut weights = vec![1_u64; tasks.len()];
    let mut leaves: Vec<usize> = (0..tasks.len()).filter(|at| children[*at] == 0).collect();
    while let Some(at) = leaves.pop() {
        if let Some(above) = above(at) {
            weights[above] += weights[at];
            children[above] -= 1;
            if children[above] == 0 {
                leaves.push(above);
            }
        }
    }
    let mut heaviest: Vec<Option<usize>> = vec![None; tasks.len()];
    for at in (0..tasks.len()).filter(|at| weights[*at] > 1 && tasks[*at].tgid != KERNEL_THREADS) {
        if let Some(above) = above(at)
            && heaviest[above].is_none_or(|other| weights[other] < weights[at])
        {
            heaviest[above] = Some(at);
        }
    }
    let mut now = *places.get(&INIT)?;
    let half = weights[now].div_ceil(2);
    // Each step goes down, but a list of the guest's own making might not.
    for _ in 0..tasks.len() {
        match heaviest[now].filter(|next| weights[*next] >= half) {
            Some(next) => now = next,
            None => break,
        }
    }
    (tasks[now].tgid != INIT).then(|| tasks[now])
}

#[cfg(test)]
mod tests;
