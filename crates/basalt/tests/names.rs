//! The facade has every name that its signatures need. This file makes each kind of call, gives
//! each type a name, and names no other crate of the engine.

use basalt::*;
use std::sync::Arc;

/// Compiles only if the value has this type.
fn is<T>(_: T) {}

fn environment() -> Env {
    Env::for_tests(basalt_sim::SimFs::new(basalt_sim::SimOptions::default()), 1)
}

struct Reversed;

impl Comparator for Reversed {
    fn name(&self) -> &str {
        "reversed"
    }
    fn compare(&self, a: &[u8], b: &[u8]) -> std::cmp::Ordering {
        b.cmp(a)
    }
}

struct Last;

impl MergeOperator for Last {
    fn name(&self) -> &str {
        "last"
    }
    fn full_merge(
        &self,
        _: &[u8],
        _: Option<&[u8]>,
        operands: &[&[u8]],
    ) -> std::result::Result<Vec<u8>, MergeRefusal> {
        let last = operands.last().ok_or_else(|| MergeRefusal::new("none"))?;
        Ok(last.to_vec())
    }
}

struct FirstByte;

impl PrefixExtractor for FirstByte {
    fn name(&self) -> &str {
        "first byte"
    }
    fn prefix_len(&self, key: &[u8]) -> Option<usize> {
        (!key.is_empty()).then_some(1)
    }
}

struct KeepAll;

impl CompactionFilter for KeepAll {
    fn name(&self) -> &str {
        "keep all"
    }
    fn filter_key(&self, _: &FilterContext<'_>, _: &[u8]) -> Option<KeyDecision> {
        Some(KeyDecision::Keep)
    }
    fn filter(&self, context: &FilterContext<'_>, _: &[u8], _: &[u8]) -> FilterDecision {
        is::<SeqNo>(context.seq);
        FilterDecision::Keep
    }
}

struct Listener;

impl EventListener for Listener {
    fn on_event(&self, event: &Event) {
        match event {
            Event::CompactionBegin(info) => {
                is::<&CompactionInfo>(info);
                is::<CompactionReason>(info.reason);
            }
            Event::TableCreated(info) => is::<&TableInfo>(info),
            Event::BlobFileCreated(info) => {
                is::<&BlobFileInfo>(info);
                is::<BlobFileReason>(info.reason);
            }
            Event::GcBegin(info) => is::<&GcInfo>(info),
            Event::StallBegin { cause, .. } => is::<&StallCause>(cause),
            Event::BackgroundError { during, error, .. } => {
                is::<&BackgroundErrorReason>(during);
                is::<Reach>(error.reach());
            }
            _ => {}
        }
    }
}

#[test]
fn user_code_implements_traits_and_families_take_it() {
    let filter: Arc<dyn CompactionFilter> = Arc::new(KeepAll);
    let operator: Arc<dyn MergeOperator> = Arc::new(Last);
    let options: Options = Options::default()
        .default_family(FamilyOptions::default().compression(Compression::Lz4))
        .listeners(vec![Arc::new(Listener) as Arc<dyn EventListener>]);
    let db: Db = Db::open(&environment(), "store", options).unwrap();
    let prefixes: Prefixes = Prefixes::Custom(Arc::new(FirstByte));
    let prefixed: Family = db
        .create_family(
            "prefixed",
            FamilyOptions::default()
                .prefix_extractor(Some(prefixes))
                .compaction_filter(Some(filter))
                .merge_operator(Some(operator)),
        )
        .unwrap();
    let reversed = FamilyOptions::default().comparator(Cmp::Custom(Arc::new(Reversed)));
    let reversed: Family = db.create_family("reversed", reversed).unwrap();
    let write = WriteOptions::default();
    is::<SeqNo>(db.merge(&prefixed, b"key", b"operand", &write).unwrap());
    for key in [b"a", b"b"] {
        db.put(&reversed, key, b"", &write).unwrap();
    }
    let mut iter: Iter = db.iter(&reversed, &ReadOptions::default()).unwrap();
    iter.seek_to_first().unwrap();
    assert_eq!(iter.key(), b"b");
    drop(iter);
    db.drop_family(&reversed).unwrap();
    assert_eq!(db.families(), ["default", "prefixed"]);
    db.flush().unwrap();
    db.compact_range(&prefixed, None, None).unwrap();
    db.wait_for_listeners();
    db.close().unwrap();
}

#[test]
fn every_type_of_a_signature_has_a_name() {
    let env: Env = environment();
    let options: Options = Options::default();
    let db: Db = Db::open(&env, "store", options.clone()).unwrap();
    let family: Family = db.default_family();
    let write: WriteOptions = WriteOptions::default().durability(Durability::Device);
    let mut batch: WriteBatch = WriteBatch::new();
    batch.put(&family, b"key", b"value").unwrap();
    let op: BatchOp<'_> = batch.iter().next().unwrap();
    is::<(u32, Kind)>((op.family, op.kind));
    is::<BatchIter<'_>>(batch.iter());
    let absent: Precondition<'_> = Precondition::unchanged(&family, b"key", 0);
    is::<Option<SeqNo>>(
        db.latest_seq(&family, b"key", &ReadOptions::default())
            .unwrap(),
    );
    is::<SeqNo>(db.write_if(WriteBatch::new(), &[absent], &write).unwrap());
    is::<SeqNo>(db.visible_seq());
    transactions(&db);
    let ticket: Ticket = db.submit(batch, &write);
    is::<SeqNo>(ticket.wait().unwrap());
    let snapshot: Snapshot = db.snapshot();
    let read: ReadOptions = ReadOptions::default().snapshot(Some(snapshot));
    is::<Option<Bytes>>(db.get(&family, b"key", &read).unwrap());
    is::<Option<ValueWithExpiry>>(db.get_with_expiry(&family, b"key", &read).unwrap());
    is::<Option<ValueMeta>>(db.get_meta(&family, b"key", &read).unwrap());
    let mut iter: Iter = db.iter(&family, &read).unwrap();
    is::<Option<Result<(Bytes, Bytes)>>>(Iterator::next(&mut iter));
    drop(iter);
    let mut table: TableWriter = db.prepare(&family).unwrap();
    table.add(b"prepared", b"value").unwrap();
    let prepared: Prepared = table.finish().unwrap();
    is::<SeqNo>(db.ingest(&[prepared]).unwrap());
    let control: CompactControl = CompactControl::default();
    let progress: OnProgress = Arc::new(|p: CompactProgress| is::<u64>(p.done_bytes));
    let compact: CompactOptions = CompactOptions::default()
        .bottommost(Bottommost::Skip)
        .control(control)
        .progress(Some(progress));
    db.compact(&family, &compact).unwrap();
    let copied: CheckpointReport = db
        .checkpoint("copy", &CheckpointOptions::default())
        .unwrap();
    is::<u64>(copied.tables);
    let ranges: [UserRange<'_>; 1] = [(None, None)];
    is::<Vec<RangeSize>>(db.approximate_sizes(&family, &ranges).unwrap());
    for file in db.blob_files() {
        is::<&BlobFileStats>(&file);
        is::<Vec<BlobFamilyStats>>(file.families);
    }
    let stats: Stats = db.stats();
    is::<Vec<FamilyStats>>(stats.families.clone());
    is::<Vec<LevelStats>>(stats.families[0].levels.clone());
    is::<Vec<StallStats>>(stats.stalls.clone());
    is::<BlobStats>(stats.blobs.clone());
    is::<[BlobShare; 10]>(stats.blobs.by_garbage);
    is::<BlobReadStats>(stats.blob_reads);
    is::<BlobCompressionStats>(stats.blob_compression);
    is::<Vec<env::BudgetUse>>(stats.budgets.clone());
    is::<Option<Vec<(WriteCause, f64)>>>(stats.write_amp_by_cause());
    is::<Option<&PageTreeStats>>(stats.pages().next());
    is::<Option<PageInspector>>(db.inspect_pages(&family).ok());
    is::<Option<fn(InspectedNode, InspectedPage, InspectedExtent)>>(None);
    is::<Option<ReadExplanation>>(db.explain(&family, b"key").ok());
    is::<Option<fn(ExplainedMemtable, ExplainedVersion, ExplainedTable, TableVerdict)>>(None);
    is::<Option<fn(PageExplanation, IndexStep, ExplainedLeaf, ExplainedPage, PageVerdict)>>(None);
    is::<Option<fn(TreeCheck, PageCounts)>>(None);
    is::<Option<fn(PageContent, PageEntry, PagePosition, PageRange)>>(None);
    assert_eq!(stats.stalls[0].cause, StallCause::Memtables);
    db.close().unwrap();
    let db: Db = Db::open_read_only(&env, "store", options.clone()).unwrap();
    let reason: Option<ReadOnlyReason> = db.stats().read_only;
    assert!(matches!(reason, Some(ReadOnlyReason::OpenedForReading)));
    db.close().unwrap();
    let report: VerifyReport = Db::verify_store(&env, "store", &options, &mut |_, _| ()).unwrap();
    is::<Vec<Error>>(report.damage);
    let repaired: RepairReport = Db::repair(&env, "store", &options, &mut |_, _| ()).unwrap();
    is::<Vec<Loss>>(repaired.losses.clone());
    let keys = repaired.losses.first().and_then(|l| l.keys.clone());
    is::<Option<KeyRange>>(keys);
}

#[test]
fn a_wrong_option_is_an_error_that_names_it() {
    let options = Options::default().write_buffer_bytes(0);
    let opened: Result<Db> = Db::open(&environment(), "store", options);
    let error: Error = opened.err().expect("refused");
    assert_eq!(error.kind(), ErrorKind::InvalidArgument);
    let text = error.to_string();
    let wanted = "write_buffer_bytes is 0: set a value from 4096 to 1099511627776";
    assert!(text.contains(wanted), "{text}");
    let key = vec![0; MAX_KEY_LEN + 1];
    let db = Db::open(&environment(), "store", Options::default()).unwrap();
    let family = db.default_family();
    let put = db.put(&family, &key, b"", &WriteOptions::UNSYNCED);
    assert_eq!(put.unwrap_err().kind(), ErrorKind::InvalidArgument);
    let header = [0; 17];
    let mut batch = WriteBatch::new();
    let put = batch.put_parts(&family, b"key", &header, b"value", None);
    assert_eq!(put.unwrap_err().kind(), ErrorKind::InvalidArgument);
    db.close().unwrap();
}

#[test]
fn a_store_of_tables_and_logs_has_names() {
    use basalt::log::*;

    let env: Env = environment();
    let options: StoreOptions = StoreOptions::default()
        .tables(Options::default())
        .logs(LogEngineOptions::default());
    let store: Store = Store::open(&env, "store", options.clone()).unwrap();
    is::<Option<LogEngine>>(store.existing_logs());
    let logs: LogEngine = store.logs().unwrap();
    let options_of_log: LogOptions = LogOptions::default().duplicates(Duplicates::Replace);
    let log: Log = logs.create("a", options_of_log).unwrap();
    let mut batch: LogBatch = LogBatch::new();
    batch.append(&log, 1, b"one").unwrap();
    assert!(batch.bytes() < MAX_BATCH_BYTES && 1 < MAX_LSN);
    let ticket: LogTicket = logs.submit(batch, &WriteOptions::SYNC).unwrap();
    ticket.wait().unwrap();
    is::<LogIter>(log.iter(0));
    is::<Vec<EngineKind>>(store.db().engines());
    let stats: StoreStats = store.stats();
    is::<Option<LogEngineStats>>(stats.logs);
    let copied: StoreCheckpointReport = store
        .checkpoint("copy", &CheckpointOptions::default())
        .unwrap();
    is::<Option<LogCopyReport>>(copied.logs);
    let verification: LogVerification = logs.verify(|_, _| ());
    is::<LogVerifyReport>(verification.wait().unwrap());
    store.close().unwrap();
    let report: StoreVerifyReport = Store::check(&env, "store", &options, &mut |_, _| ()).unwrap();
    is::<Option<LogVerifyReport>>(report.logs);
    let report: StoreRepairReport = Store::repair(&env, "store", &options, &mut |_, _| ()).unwrap();
    let logs: LogRepairReport = report.logs.unwrap();
    is::<Vec<LogLoss>>(logs.losses);
    is::<Vec<LogUnprovenEnd>>(logs.unproven_ends);
}

fn transactions(db: &Db) {
    let (read, write) = (ReadOptions::default(), WriteOptions::default());
    let family = db.default_family();
    let options: TransactionDbOptions = TransactionDbOptions::default();
    let transactions: TransactionDb = TransactionDb::new(db, options).unwrap();
    let options: TransactionOptions =
        TransactionOptions::optimistic().concurrency(Concurrency::Pessimistic);
    is::<u64>(MAX_TRANSACTION_BYTES - options.max_write_bytes);
    let mut own: Transaction = transactions.begin(&options).unwrap();
    own.put(&family, b"of a transaction", b"value").unwrap();
    is::<bool>(own.key_count() < MAX_TRANSACTION_KEYS);
    is::<Option<&Snapshot>>(own.snapshot());
    let found = own.get_with_expiry(&family, b"of a transaction", &read);
    is::<Option<ValueWithExpiry>>(found.unwrap());
    let iter: TransactionIter<'_> = own.iter(&family, &read).unwrap();
    drop(iter);
    is::<SeqNo>(own.commit(&write).unwrap());
    is::<TransactionStats>(transactions.stats());
}
