//! Tests of the module `run`.

use super::*;

#[test]
fn an_order_survives_its_text() {
    let case = Case {
        workload: LogWorkload::Iterate,
        synced: true,
        threads: 3,
    };
    for fill in [
        FillOrder::Measure,
        FillOrder::Prepare(Prepared::Closed),
        FillOrder::Prepare(Prepared::Crashed),
        FillOrder::Prepare(Prepared::Gaps),
    ] {
        let order = LogOrder {
            engine: LogEngineName::RaftEngine,
            case,
            store: "log-1/run".into(),
            fill,
            pair: 4,
            label: "1/2 \"read\"".into(),
        };
        assert_eq!(LogOrder::parse(&order.text()).unwrap(), order);
    }
    let refused = LogOrder::parse("{}").unwrap_err().sentence;
    assert!(refused.contains(ORDER), "{refused}");
}
