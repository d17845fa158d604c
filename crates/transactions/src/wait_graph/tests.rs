//! Cycles in graphs of waits.

use super::*;
use basalt_sim::rng::Rng;

fn graph(edges: &[(TransactionId, &[TransactionId])]) -> WaitGraph {
    let mut graph = WaitGraph::default();
    for (id, blockers) in edges {
        graph.add(*id, format!("key {id}"), Blockers::from_slice(blockers));
    }
    graph
}

#[test]
fn a_cycle_is_found_with_the_keys_of_its_transactions() {
    let found = graph(&[(1, &[9, 2]), (2, &[8, 3]), (3, &[1]), (4, &[1])]);
    assert_eq!(found.cycle(1), Some(vec!["key 1", "key 2", "key 3"]));
    assert_eq!(found.cycle(3), Some(vec!["key 3", "key 1", "key 2"]));
    // It waits for a cycle, and is not part of it.
    assert_eq!(found.cycle(4), None);
    assert_eq!(found.cycle(9), None, "it does not wait");
}

#[test]
fn a_transaction_that_waits_no_more_is_in_no_cycle() {
    let mut found = graph(&[(1, &[2]), (2, &[1])]);
    assert!(found.cycle(1).is_some());
    found.remove(2);
    assert_eq!(found.cycle(1), None);
    found.set_blockers(2, Blockers::from_slice(&[1]));
    assert_eq!(found.cycle(1), None, "edges bring no transaction back");
}

/// The search finds what the closure of the edges says.
#[test]
fn the_search_agrees_with_the_closure() {
    let mut rng = Rng::of(&[45]);
    let (mut cycles, mut others) = (0, 0);
    for _ in 0..500 {
        const N: usize = 7;
        let mut reaches = [[false; N]; N];
        let mut found = WaitGraph::default();
        for (id, reached) in reaches.iter_mut().enumerate() {
            if rng.percent(30) {
                continue;
            }
            let blockers: Blockers = (0..N as u64)
                .filter(|other| *other != id as u64 && rng.percent(20))
                .collect();
            blockers.iter().for_each(|b| reached[*b as usize] = true);
            found.add(id as u64, String::new(), blockers);
        }
        for by in 0..N {
            for from in 0..N {
                for to in 0..N {
                    reaches[from][to] |= reaches[from][by] && reaches[by][to];
                }
            }
        }
        for (id, reached) in reaches.iter().enumerate() {
            assert_eq!(found.cycle(id as u64).is_some(), reached[id]);
            match reached[id] {
                true => cycles += 1,
                false => others += 1,
            }
        }
    }
    assert!(cycles > 100 && others > 100, "{cycles} {others}");
}
