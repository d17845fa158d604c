//! Tests of the module `encoder`.

use super::*;

#[test]
fn a_report_that_is_dropped_reports_a_failure_once() {
    let (sender, results) = mpsc::channel();
    let report = || {
        let sender = sender.clone();
        let done = move |r: Result<()>| sender.send(r.map_err(|e| e.kind())).unwrap();
        Report(Some(Box::new(done)))
    };
    report().send(Ok(()));
    drop(report());
    drop(sender.clone());
    let results: Vec<_> = results.try_iter().collect();
    assert_eq!(results, [Ok(()), Err(ErrorKind::Poisoned)]);
}
