//! Compaction: which tables to merge next (`pick`), and merging them (`run`).
