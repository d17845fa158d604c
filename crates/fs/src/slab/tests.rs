//! Tests of the slab: random blocks against a map of the memory in use, limits, trims and threads.
//!
//! This is a leaf module with `unsafe`. Invariant: a [`Block`] is memory that its slab returned,
//! and `give_back` consumes the block, so no code reads or frees it afterwards.
#![allow(unsafe_code)]

use super::purge::{LOOKS, RETURNS};
use super::shard::{KEPT_LEAST, KEPT_PART};
use super::size_class::STEPS;
use super::*;
use basalt_sim::rng::Rng;
use std::collections::BTreeMap;

/// A block with its size and the byte that fills it.
struct Block {
    ptr: NonNull<u8>,
    size: usize,
    fill: u8,
}

// SAFETY: a block belongs only to the test that took it.
unsafe impl Send for Block {}

impl Block {
    fn take(slab: &Slab, size: usize, lifetime: Lifetime, fill: u8) -> Block {
        let ptr = slab.take(size, lifetime).expect("memory");
        // SAFETY: the block has `size` bytes, and no other code uses them.
        unsafe { ptr.write_bytes(fill, size) };
        Block { ptr, size, fill }
    }

    /// Takes a block and writes only its first byte.
    fn touch(slab: &Slab, size: usize, lifetime: Lifetime) -> Block {
        let ptr = slab.take(size, lifetime).expect("memory");
        // SAFETY: the block has more than one byte, and no other code uses them.
        unsafe { ptr.write(1) };
        Block {
            ptr,
            size: 1,
            fill: 1,
        }
    }

    fn check(&self) {
        // SAFETY: `take` wrote the bytes, and no other code uses the memory.
        let bytes = unsafe { std::slice::from_raw_parts(self.ptr.as_ptr(), self.size) };
        assert!(
            bytes.iter().all(|b| *b == self.fill),
            "a block of {} bytes changed",
            self.size
        );
    }

    fn give_back(self, slab: &Slab) {
        self.check();
        // SAFETY: the block is from this slab, and is consumed here.
        unsafe { slab.give_back(self.ptr) };
    }
}

/// Returns a random size; each class can occur, and small sizes are more frequent.
fn some_size(rng: &mut Rng) -> usize {
    let most = SLAB_MOST >> (rng.next_u64() % 9);
    SLAB_FROM + (rng.next_u64() as usize) % (most - SLAB_FROM + 1)
}

fn both() -> [Lifetime; 2] {
    [Lifetime::Brief, Lifetime::Cached]
}

#[test]
fn a_slot_fits_its_block_and_wastes_little() {
    let mut before = 0;
    for size in SLAB_FROM..=SLAB_MOST {
        let slot = slot_size(size);
        assert!(
            slot >= size && slot >= before && slot <= SLAB_MOST,
            "{size}"
        );
        assert_eq!(slot_size(slot), slot, "{size}");
        let waste = slot - size;
        if slot < LARGE {
            assert!(waste < size.div_ceil(STEPS), "{size}");
            assert!(slot.is_multiple_of(SMALL_ALIGN), "{size}");
        } else {
            assert!(waste < (size.div_ceil(STEPS)).max(PAGE), "{size}");
            assert!(slot.is_multiple_of(PAGE), "{size}");
        }
        let class = class_of(slot);
        assert!(class < CLASSES, "{size}");
        assert_eq!(
            before == slot,
            size > SLAB_FROM && class == class_of(slot_size(size - 1))
        );
        before = slot;
    }
}

#[test]
fn random_blocks_do_not_overlap_and_are_counted_exactly() {
    let (seeds, steps) = if cfg!(miri) { (2, 60) } else { (8, 2_000) };
    for seed in 0..seeds {
        let slab = Slab::new();
        let mut rng = Rng::new(seed);
        // The end address of each block and the block, by the start address.
        let mut live: BTreeMap<usize, Block> = BTreeMap::new();
        let (mut used, mut most_used) = (0, 0);
        for step in 0..steps {
            // The number of blocks grows and shrinks in turn.
            let grows = (step / 500) % 2 == 0;
            if live.is_empty() || rng.next_u64() % 10 < if grows { 7 } else { 3 } {
                let size = some_size(&mut rng);
                let lifetime = both()[(rng.next_u64() % 2) as usize];
                let block = Block::take(&slab, size, lifetime, step as u8);
                let (from, slot) = (block.ptr.as_ptr().addr(), slot_size(size));
                let align = if slot >= LARGE { PAGE } else { SMALL_ALIGN };
                assert!(from.is_multiple_of(align));
                if let Some((_, above)) = live.range(from..).next() {
                    assert!(from + slot <= above.ptr.as_ptr().addr());
                }
                if let Some((at, below)) = live.range(..from).next_back() {
                    assert!(at + slot_size(below.size) <= from);
                }
                used += slot;
                live.insert(from, block);
            } else {
                let n = (rng.next_u64() as usize) % live.len();
                let from = *live.keys().nth(n).expect("one of them");
                let block = live.remove(&from).expect("just found");
                used -= slot_size(block.size);
                block.give_back(&slab);
            }
            if rng.below(200) == 0 {
                slab.trim();
                let now = slab.usage();
                assert_eq!(now.dirty, 0);
                // The pages at both ends of a small block stay, and no others.
                let small = live.values().filter(|b| slot_size(b.size) < LARGE).count();
                assert!(now.between < 2 * PAGE * small.max(1), "{now:?}");
                live.values().for_each(Block::check);
            }
            let now = slab.usage();
            assert_eq!(now.used, used, "seed {seed}");
            most_used = most_used.max(used);
            let kept = (most_used / KEPT_PART).max(KEPT_LEAST);
            assert!(now.dirty <= kept, "seed {seed}: {now:?}");
        }
        live.into_values().for_each(|b| b.give_back(&slab));
        slab.trim();
        assert_eq!(slab.usage(), SlabUse::default(), "seed {seed}");
    }
}

#[test]
fn freed_memory_beyond_the_limit_returns_without_a_trim() {
    let bytes = if cfg!(miri) { 1 << 20 } else { 24 << 20 };
    for size in [SLAB_FROM, 5000, LARGE, 70_000, SLAB_MOST] {
        let slab = Slab::new();
        let all: Vec<Block> = (0..bytes / size)
            .map(|n| Block::take(&slab, size, Lifetime::Brief, n as u8))
            .collect();
        let mapped = slab.usage().mapped;
        all.into_iter().for_each(|b| b.give_back(&slab));
        let now = slab.usage();
        assert_eq!(now.used, 0);
        assert!(now.dirty <= mapped / KEPT_PART + KEPT_LEAST, "{now:?}");
        slab.trim();
        assert_eq!(slab.usage(), SlabUse::default());
    }
}

/// After a trim, the pages are returned: a read of them gives zeros.
#[test]
fn a_trim_returns_the_pages_of_free_slots_beside_blocks_in_use() {
    let slab = Slab::new();
    let blocks: Vec<Block> = (0..20)
        .map(|n| Block::take(&slab, 40_000, Lifetime::Cached, n + 1))
        .collect();
    let (kept, freed): (Vec<_>, Vec<_>) = blocks
        .into_iter()
        .enumerate()
        .partition(|(n, _)| n % 2 == 0);
    let addresses: Vec<NonNull<u8>> = freed.iter().map(|(_, b)| b.ptr).collect();
    freed.into_iter().for_each(|(_, b)| b.give_back(&slab));
    assert_eq!(slab.usage().dirty, 10 * slot_size(40_000));
    slab.trim();
    assert_eq!(slab.usage().dirty, 0);
    for at in addresses {
        // SAFETY: the span is still mapped, because half of its blocks are in use.
        assert_eq!(unsafe { at.read() }, 0);
    }
    kept.into_iter().for_each(|(_, b)| b.give_back(&slab));
}

#[test]
fn dirty_memory_is_used_before_clean_memory() {
    let slab = Slab::new();
    let mut blocks: Vec<Block> = (0..8)
        .map(|n| Block::take(&slab, 60_000, Lifetime::Brief, n))
        .collect();
    let freed = blocks.remove(3);
    let at = freed.ptr;
    freed.give_back(&slab);
    let again = Block::take(&slab, 60_000, Lifetime::Brief, 9);
    assert_eq!(again.ptr, at);
    assert_eq!(slab.usage().dirty, 0);
    again.give_back(&slab);
    blocks.into_iter().for_each(|b| b.give_back(&slab));
}

#[test]
fn blocks_of_different_lifetimes_share_no_unit() {
    let slab = Slab::new();
    let of = |lifetime| Block::take(&slab, 3000, lifetime, 1);
    let (one, other) = (of(Lifetime::Brief), of(Lifetime::Cached));
    assert_ne!(
        one.ptr.as_ptr().addr() / UNIT,
        other.ptr.as_ptr().addr() / UNIT
    );
    one.give_back(&slab);
    other.give_back(&slab);
}

#[test]
#[should_panic(expected = "freed twice")]
fn a_double_free_is_detected() {
    let slab = Slab::new();
    let kept = slab.take(2000, Lifetime::Brief).expect("memory");
    let block = slab.take(2000, Lifetime::Brief).expect("memory");
    // SAFETY: the first call is sound. The second call breaks the rule, and stops at the check.
    unsafe {
        slab.give_back(block);
        slab.give_back(block);
    }
    let _ = kept;
}

/// Blocks travel between threads, and a thread trims meanwhile.
#[test]
#[expect(clippy::disallowed_methods, reason = "the threads of this test")]
fn threads_share_a_slab() {
    let (threads, steps) = if cfg!(miri) { (2, 30) } else { (4, 4_000) };
    let slab = Slab::new();
    let passed: Mutex<Vec<Block>> = Mutex::new(Vec::new());
    std::thread::scope(|scope| {
        for t in 0..threads {
            let (slab, passed) = (&slab, &passed);
            scope.spawn(move || {
                let mut rng = Rng::new(t);
                let mut own = Vec::new();
                for step in 0..steps {
                    match rng.next_u64() % 6 {
                        0 | 1 if own.len() < 100 => {
                            let lifetime = both()[(rng.next_u64() % 2) as usize];
                            let size = some_size(&mut rng);
                            own.push(Block::take(slab, size, lifetime, step as u8));
                        }
                        2 => passed.lock().extend(own.pop()),
                        3 => {
                            let block = passed.lock().pop();
                            block.into_iter().for_each(|b| b.give_back(slab));
                        }
                        _ => {
                            own.pop().into_iter().for_each(|b| b.give_back(slab));
                        }
                    }
                    if t == 0 && step % 500 == 0 {
                        slab.trim();
                    }
                }
                own.into_iter().for_each(|b| b.give_back(slab));
            });
        }
    });
    passed
        .into_inner()
        .into_iter()
        .for_each(|b| b.give_back(&slab));
    assert_eq!(slab.usage().used, 0);
    slab.trim();
    assert_eq!(slab.usage(), SlabUse::default());
}

/// The system rounds the length of a range that it takes back up to its own pages.
#[test]
fn a_system_with_larger_pages_keeps_blocks_beside_freed_ones() {
    for page in [16 << 10, 64 << 10] {
        let slab = Slab::new();
        let blocks: Vec<Block> = (0..100)
            .map(|n| Block::take(&slab, 20_000, Lifetime::Cached, n + 1))
            .collect();
        slab.system.page.store(page, Relaxed);
        let (kept, freed): (Vec<_>, Vec<_>) = blocks.into_iter().partition(|b| b.fill % 2 == 0);
        freed.into_iter().for_each(|b| b.give_back(&slab));
        slab.trim();
        kept.iter().for_each(Block::check);
        assert!(slab.take(30_000, Lifetime::Cached).is_none(), "{page}");
        assert!(slab.take(2_000, Lifetime::Cached).is_none(), "{page}");
        kept.into_iter().for_each(|b| b.give_back(&slab));
    }
}

/// A system with larger pages has no spans from the beginning, so the allocator serves the blocks.
#[test]
fn a_system_with_larger_pages_gets_no_span() {
    let slab = Slab::new();
    slab.system.page.store(16 << 10, Relaxed);
    for size in [SLAB_FROM, 5_000, LARGE, SLAB_MOST] {
        assert!(slab.take(size, Lifetime::Brief).is_none(), "{size}");
    }
    assert_eq!(slab.usage(), SlabUse::default());
}

/// Returns the flags of the mapping at an address, and `None` if the system does not say.
#[cfg(all(target_os = "linux", not(miri)))]
#[expect(clippy::disallowed_methods, reason = "a file of the kernel")]
fn mapping_flags(at: usize) -> Option<String> {
    let text = std::fs::read_to_string("/proc/self/smaps").ok()?;
    let mut is_inside = false;
    for line in text.lines() {
        let first = line.split(' ').next()?;
        if let Some((from, to)) = first.split_once('-')
            && let (Ok(from), Ok(to)) = (
                usize::from_str_radix(from, 16),
                usize::from_str_radix(to, 16),
            )
        {
            is_inside = (from..to).contains(&at);
        } else if is_inside && let Some(flags) = line.strip_prefix("VmFlags: ") {
            return Some(flags.to_owned());
        }
    }
    None
}

/// With huge pages, the first byte of a span would make 2 MiB resident.
#[test]
#[cfg(all(target_os = "linux", target_pointer_width = "64", not(miri)))]
#[expect(clippy::disallowed_methods, reason = "a file of the kernel")]
fn spans_have_no_huge_pages() {
    if !std::fs::exists("/sys/kernel/mm/transparent_hugepage").unwrap_or(false) {
        return;
    }
    let slab = Slab::new();
    let blocks: Vec<Block> = (0..20)
        .map(|n| Block::take(&slab, SLAB_MOST, Lifetime::Brief, n))
        .collect();
    for block in &blocks {
        if let Some(flags) = mapping_flags(block.ptr.as_ptr().addr()) {
            assert!(flags.split(' ').any(|flag| flag == "nh"), "{flags}");
        }
    }
    blocks.into_iter().for_each(|b| b.give_back(&slab));
}

/// The system refuses to unmap a span if the process has as many mappings as it may have.
#[test]
fn a_span_that_cannot_be_unmapped_stays_and_is_used_again() {
    for size in [2_000, 70_000] {
        let slab = Slab::new();
        let take = || -> Vec<Block> {
            (0..(12 << 20) / size)
                .map(|n| Block::take(&slab, size, Lifetime::Brief, n as u8))
                .collect()
        };
        let blocks = take();
        let mapped = slab.usage().mapped;
        assert!(mapped >= 3 * SPAN);
        slab.system.keeps_spans.store(true, Relaxed);
        blocks.into_iter().for_each(|b| b.give_back(&slab));
        slab.trim();
        let kept = SlabUse {
            mapped,
            ..SlabUse::default()
        };
        assert_eq!(slab.usage(), kept);
        let again = take();
        assert_eq!(slab.usage().mapped, mapped);
        slab.system.keeps_spans.store(false, Relaxed);
        again.into_iter().for_each(|b| b.give_back(&slab));
        slab.trim();
        assert_eq!(slab.usage(), SlabUse::default());
    }
}

/// Dirty memory that a burst of other sizes left must not make each later free a system call.
#[test]
fn a_size_in_use_keeps_its_memory_after_bursts_of_others() {
    let rounds = if cfg!(miri) { 10 } else { 1_000 };
    let sizes: &[usize] = &[17_000, 65_536, 200_000];
    for (size, others) in sizes.iter().flat_map(|s| [(*s, 40_000), (*s, 3_000)]) {
        let slab = Slab::new();
        for lifetime in both() {
            let burst: Vec<Block> = (0..3 * KEPT_LEAST / others)
                .map(|_| Block::touch(&slab, others, lifetime))
                .collect();
            burst.into_iter().for_each(|b| b.give_back(&slab));
        }
        let before = slab.usage();
        assert!(before.dirty > KEPT_LEAST / 4 * 3, "{before:?}");
        slab.system.returns.store(0, Relaxed);
        for _ in 0..rounds {
            let four: Vec<Block> = (0..4)
                .map(|_| Block::touch(&slab, size, Lifetime::Cached))
                .collect();
            four.into_iter().for_each(|b| b.give_back(&slab));
            assert!(slab.usage().dirty <= KEPT_LEAST);
        }
        let returns = slab.system.returns.load(Relaxed);
        assert!(returns <= 4 * RETURNS, "{size}, {others}: {returns}");
    }
}

/// The free memory of many spans: the dirty memory of one class lies far from where a free looks.
#[test]
#[cfg(not(miri))]
fn a_free_finds_older_dirty_memory_among_many_spans() {
    let slab = Slab::new();
    let stale: Vec<Block> = (0..40)
        .map(|_| Block::touch(&slab, 25_000, Lifetime::Brief))
        .collect();
    let live: Vec<Block> = (0..400)
        .map(|_| Block::touch(&slab, 500_000, Lifetime::Cached))
        .collect();
    let kept = slab.usage().used / KEPT_PART;
    stale.into_iter().for_each(|b| b.give_back(&slab));
    let more = (kept - slab.usage().dirty) / slot_size(60_000) + 1;
    let other: Vec<Block> = (0..more)
        .map(|_| Block::touch(&slab, 60_000, Lifetime::Brief))
        .collect();
    other.into_iter().for_each(|b| b.give_back(&slab));
    slab.system.returns.store(0, Relaxed);
    for _ in 0..1_000 {
        Block::touch(&slab, 100_000, Lifetime::Brief).give_back(&slab);
    }
    let returns = slab.system.returns.load(Relaxed);
    let most = slab.usage().mapped / SPAN / LOOKS + 2 * RETURNS;
    assert!(returns <= most, "{returns} of {most}");
    live.into_iter().for_each(|b| b.give_back(&slab));
    slab.trim();
    assert_eq!(slab.usage(), SlabUse::default());
}

/// A sixteenth of small blocks stays, spread over all units, and larger ones follow. The memory
/// that the system backs is the blocks and the rest of their pages.
#[test]
fn few_small_blocks_keep_only_their_pages_after_a_trim() {
    let all = if cfg!(miri) { 64 } else { 4096 };
    for (size, pages) in [(1_100, 2), (4096, 1), (4200, 3), (9_000, 4)] {
        let slab = Slab::new();
        let blocks: Vec<Block> = (0..all)
            .map(|n| Block::take(&slab, size, Lifetime::Cached, n as u8 | 1))
            .collect();
        let full = slab.usage().used;
        let (kept, freed): (Vec<_>, Vec<_>) = blocks
            .into_iter()
            .enumerate()
            .partition(|(n, _)| n % 16 == 0);
        let addresses: Vec<NonNull<u8>> = freed.iter().map(|(_, b)| b.ptr).collect();
        freed.into_iter().for_each(|(_, b)| b.give_back(&slab));
        let before = slab.usage();
        assert!(before.between > full / 3, "{size}: {before:?}");
        slab.trim();
        kept.iter().for_each(|(_, b)| b.check());
        let after = slab.usage();
        assert_eq!(after.dirty, 0);
        let most = kept.len() * pages * PAGE;
        assert!(after.used + after.between <= most, "{size}: {after:?}");
        // Most pages of freed blocks read as zero. The span is mapped, because the blocks that stay
        // are spread over all units.
        // SAFETY: invariant 1 of the slab: no span with a block in use is unmapped.
        let zero = |at: &&NonNull<u8>| unsafe { at.read() } == 0;
        assert!(
            addresses.iter().filter(zero).count() * 2 >= addresses.len(),
            "{size}"
        );
        // The slots between are used again.
        let again: Vec<Block> = addresses
            .iter()
            .map(|_| Block::take(&slab, size, Lifetime::Cached, 3))
            .collect();
        assert_eq!(slab.usage().used, full);
        assert_eq!(slab.usage().mapped, before.mapped);
        kept.iter().for_each(|(_, b)| b.check());
        again.into_iter().for_each(|b| b.give_back(&slab));
        kept.into_iter().for_each(|(_, b)| b.give_back(&slab));
        slab.trim();
        assert_eq!(slab.usage(), SlabUse::default());
    }
}
