//! The way of an operation on a log through the metalog: it is durable before the index changes
//! (pageserver 5.2).

use crate::apply::{PlacedOp, apply_to_log};
use crate::engine::Engine;
use crate::index::PageLocation;
use crate::log_ops::LogOp;
use crate::namespace::LogState;
use crate::queue::{Commit, Cost, Results};
use crate::request::MetaRequest;
use basalt_env::JobPriority;
use basalt_env::sync::atomic::Ordering::SeqCst;
use basalt_fs::{AlignedBuf, ErrorKind, Result};
use basalt_records::{Outgoing, RECORD_HEADER, RecordKind};
use smallvec::SmallVec;
use std::sync::Arc;

impl Engine {
    /// Commits an operation on a log, and waits for it.
    pub fn run_op(&self, log: &Arc<LogState>, op: LogOp, sync: bool) -> Result<()> {
        self.check_open()?;
        if !op.frees_space() {
            // Only operations that free space may use the reserve.
            drop(self.logs.hold_reserve()?);
        }
        let request = MetaRequest {
            log: log.clone(),
            op,
            sync,
        };
        let cost = Cost {
            bytes: 64,
            syncs: sync,
        };
        self.meta_queue.run(request, cost, &MetaCommit(self))
    }
}

/// Commits groups of the metalog's queue.
pub(crate) struct MetaCommit<'a>(pub &'a Engine);

/// A record of the metalog that is about to be written.
struct MetaRecord {
    buf: AlignedBuf,
    kind: RecordKind,
    /// Indexes of the requests in the group whose operations the record has.
    requests: SmallVec<[usize; 4]>,
}

impl Commit<MetaRequest> for MetaCommit<'_> {
    fn commit(&self, group: &mut [MetaRequest]) -> Results {
        let engine = self.0;
        let mut writer = engine.meta.lock();
        let mut metas = meta_records(group);
        let sync = group.iter().any(|request| request.sync);
        let mut records: Vec<Outgoing<'_>> = metas
            .iter_mut()
            .map(|meta| Outgoing {
                kind: meta.kind,
                first_seq: engine.next_seq.fetch_add(1, SeqCst),
                count: meta.requests.len() as u32,
                payload_crc: basalt_records::payload_crc(&meta.buf[RECORD_HEADER..], &[]),
                separated: &[],
                offset: 0,
                buf: &mut meta.buf,
            })
            .collect();
        let lens: Vec<usize> = records.iter().map(|r| r.buf.len()).collect();
        let mut appended = writer.append(&mut records, sync);
        if let Err(e) = &appended
            && e.kind() == ErrorKind::NoSpace
            && group.iter().any(|request| request.op.frees_space())
            && engine.logs.release_reserve()
        {
            appended = (writer.resume_now()).and_then(|()| writer.append(&mut records, sync));
        }
        let file = match appended {
            Ok(file) => file,
            Err(e) => {
                // To replay a failed page is harmless: `install_page` skips entries that have
                // changed since.
                let is_page = |request: &MetaRequest| matches!(request.op, LogOp::Page { .. });
                if !group.iter().all(is_page) {
                    engine.has_unended_meta.store(true, SeqCst);
                }
                return group.iter().map(|_| Err(e.clone())).collect();
            }
        };
        let counters = &engine.logs.counters;
        counters.operations.add(group.len() as u64);
        let is_page = |request: &&MetaRequest| matches!(request.op, LogOp::Page { .. });
        counters
            .pages
            .add(group.iter().filter(is_page).count() as u64);
        engine.note_appended(lens.iter().map(|len| *len as u64).sum());
        engine.tend_writer(&mut writer, |engine| &engine.meta);
        let places: Vec<(u64, PageLocation)> = (records.iter().zip(lens))
            .map(|(record, len)| {
                let at = PageLocation {
                    file: file.number,
                    offset: record.offset,
                    len: len as u32,
                };
                (record.first_seq, at)
            })
            .collect();
        drop(records);
        for (meta, (seq, at)) in metas.iter().zip(places) {
            for i in &meta.requests {
                let MetaRequest { log, op, .. } = &group[*i];
                engine.apply_op(log, &PlacedOp { op, seq, at });
            }
        }
        group.iter().map(|_| Ok(())).collect()
    }

    fn lead_in_background(&self) {
        self.0.in_background(JobPriority::Commit, |engine| {
            engine.meta_queue.lead_one(&MetaCommit(engine));
        });
    }
}

/// Encodes the operations of a group: each page as a record of its own, whose place the index
/// keeps, each rename as a record of its own kind, and all others as one.
fn meta_records(group: &[MetaRequest]) -> Vec<MetaRecord> {
    let mut all: Vec<MetaRecord> = Vec::new();
    let mut shared: Option<(SmallVec<[usize; 4]>, Vec<u8>)> = None;
    let record = |kind, requests, payload: &[u8]| {
        let mut buf = AlignedBuf::with_capacity(RECORD_HEADER + payload.len());
        buf.resize(RECORD_HEADER, 0);
        buf.extend_from_slice(payload);
        MetaRecord {
            buf,
            kind,
            requests,
        }
    };
    for (i, request) in group.iter().enumerate() {
        let op = &request.op;
        if matches!(op, LogOp::Page { .. } | LogOp::Rename { .. }) {
            let mut payload = Vec::new();
            op.encode(&mut payload);
            all.push(record(
                op.record_kind(),
                SmallVec::from_slice(&[i]),
                &payload,
            ));
        } else {
            let (requests, payload) = shared.get_or_insert_default();
            requests.push(i);
            op.encode(payload);
        }
    }
    all.extend(shared.map(|(requests, payload)| record(RecordKind::LogOps, requests, &payload)));
    all
}

impl Engine {
    /// Applies an operation that is in the metalog.
    fn apply_op(&self, log: &Arc<LogState>, placed: &PlacedOp<'_>) {
        match placed.op {
            LogOp::Create { .. } => {
                // The caller of the creation has made sure that the name is free.
                let added = self.namespace.add(log.clone());
                debug_assert!(added.is_ok(), "{added:?}");
                self.created_below.fetch_max(log.number + 1, SeqCst);
            }
            LogOp::Rename { log, name } => {
                // The caller of the rename has made sure that the name is free.
                let renamed = self.namespace.rename(*log, name);
                debug_assert!(renamed.is_ok(), "{renamed:?}");
            }
            LogOp::Delete { log } => self.namespace.remove(*log),
            LogOp::Page { .. } => {
                if let Some(file) = self.logs.get(placed.at.file) {
                    file.add_live(u64::from(placed.at.len));
                }
            }
            LogOp::Trim { .. } | LogOp::Remove { .. } => {}
        }
        let freed = apply_to_log(log, placed, &|page| self.load_page(log, page));
        self.note_freed(&freed);
    }
}
