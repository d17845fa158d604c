//! Tests of the module `compare`.

use super::*;
use clap::ValueEnum;

#[test]
fn pairs_are_interleaved() {
    let order: Vec<usize> = order_of_runs(2, 4).iter().map(|r| r.1).collect();
    assert_eq!(order, [0, 1, 1, 0, 0, 1, 1, 0]);
    let three: Vec<usize> = order_of_runs(3, 2).iter().map(|r| r.1).collect();
    assert_eq!(three, [0, 1, 2, 2, 1, 0]);
    assert!(order_of_runs(2, 4).iter().all(|r| r.0 < 4));
}

#[test]
fn the_shuffled_order_survives_its_environment_variable() {
    for &kind in Kind::value_variants() {
        let order = Order {
            engine: EngineName::Rocksdb,
            kind,
            threads: 7,
            store: "a/b".into(),
            prepare: true,
            pair: 3,
            label: "1/2 \"x\"".into(),
        };
        assert_eq!(Order::parse(&order.text()).ok(), Some(order));
    }
    assert!(Order::parse("{}").is_err() && Order::parse("x").is_err());
}
