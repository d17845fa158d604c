//! The example of three nodes, with small numbers.

#[path = "../examples/three_nodes.rs"]
mod example;

#[test]
fn no_acknowledged_write_is_lost_when_each_node_is_killed() {
    let report = example::run(1, 60);
    println!("{report:?}");
    assert_eq!(report.kills, 3);
    assert!(
        report.writes >= 7 * 60 && report.snapshots > 0,
        "{report:?}"
    );
}
