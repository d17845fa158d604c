//! Tests of the module `workload`, with an engine in memory.
