//! Errors of the filesystem end a writer.

use super::*;
use basalt_fs::ErrorKind;
use basalt_sim::fault::{Fault, FaultKind};
use basalt_sim::{FaultFs, OpKind, When};

#[test]
fn any_error_poisons_the_writer() {
    for (op, kind) in [
        (OpKind::Append, FaultKind::Eio),
        (OpKind::Append, FaultKind::Enospc),
        (OpKind::Append, FaultKind::ShortWrite),
        (OpKind::SyncData, FaultKind::FailedSync),
    ] {
        let inner = disk(512, 1);
        let fs = FaultFs::new(inner.clone(), 1);
        let path = Path::new("1.log");
        let options = LogOptions {
            capacity: 16 << 10,
            reuse: None,
        };
        let file = fs.create_log(path, options).unwrap();
        let mut w = RecordWriter::create(file, path, &file_header(512, 5, 1)).unwrap();
        append(&mut w, 1, &[vec![1; 100]], true).unwrap();
        let synced = w.synced();
        let rule = fs.inject(Fault {
            op: Some(op),
            path: String::new(),
            when: When::Nth(1),
            kind,
        });
        let e = append(&mut w, 2, &[vec![2; 5000]], true).unwrap_err();
        assert_eq!(fs.seen(rule), 1);
        assert_ne!(
            e.kind(),
            ErrorKind::Poisoned,
            "the first error is the filesystem's own: {e}"
        );
        for _ in 0..2 {
            let e = append(&mut w, 2, &[vec![2; 10]], false).unwrap_err();
            assert_eq!(e.kind(), ErrorKind::Poisoned, "{e}");
            assert_eq!(w.sync().unwrap_err().kind(), ErrorKind::Poisoned);
        }
        assert_eq!(w.synced(), synced);
        let (got, _) = read_all(&*inner, path, &expect(5, synced)).unwrap();
        assert_eq!(got[0], vec![1; 100]);
        assert!(got.len() == 1 || got[1..] == [vec![2; 5000]]);
    }
}
