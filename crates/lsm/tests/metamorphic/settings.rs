//! Sets of options, drawn from a seed. Set 0 has every option at its default.

use crate::operations::FAMILIES;
use crate::operators::{extractor, operator, own_extractor};
use crate::rng::Rng;
use basalt_env::{Clock, Env, EnvBuilder, ManualClock};
use basalt_fs::FileSystem;
use basalt_lsm::db::{Bottommost, CheckpointOptions};
use basalt_lsm::{
    CompactionFilter, Compression, FamilyOptions, FilterContext, FilterDecision, Options, Prefixes,
    TreeOptions,
};
use std::sync::Arc;
use std::time::Duration;

/// The first byte of values that every reader takes for absent.
pub const EXPIRABLE: u8 = 0xdd;

/// A compaction filter that removes values that readers take for absent anyway.
struct ExpiredValueFilter;

impl CompactionFilter for ExpiredValueFilter {
    fn name(&self) -> &str {
        "reaper"
    }
    fn filter(&self, _: &FilterContext<'_>, _: &[u8], value: &[u8]) -> FilterDecision {
        if value.first() == Some(&EXPIRABLE) {
            FilterDecision::Remove
        } else {
            FilterDecision::Keep
        }
    }
}

/// One set of options, for the store and its environment.
#[derive(Clone, Debug)]
pub struct Settings {
    seed: u64,
    set: u64,
    pub write_unit: usize,
    /// Background threads; `None` if jobs are stepped.
    threads: Option<usize>,
    memory_bytes: u64,
    cache_bytes: u64,
    open_files: usize,
    /// True if the store's options change with each of its lives.
    changing: bool,
    /// Number of background jobs that are stepped after an operation, in a hundredth of operations.
    pub steps: u64,
    pub fill_cache: bool,
    /// Bytes that one call of a `multi_get` in parts may read.
    pub read_budget: usize,
    pub checkpoint: CheckpointOptions,
    pub bottommost: Bottommost,
    /// If true, manual compactions run alone in the store.
    pub exclusive: bool,
    /// If true, manual compactions relocate values.
    pub relocate_values: bool,
    /// Percentage of the writes possible as prepared tables that are such tables.
    pub ingests: u64,
}

/// Draws an extractor, rarely one that is not the family's own.
fn draw_extractor(c: &mut Rng, family: usize) -> Option<Prefixes> {
    match c.below(10) {
        0..=3 => None,
        4..=7 => Some(own_extractor(family)),
        _ => Some(extractor(c.below(6))),
    }
}

fn family(c: &mut Rng) -> FamilyOptions {
    let trigger = c.within(1, 6) as usize;
    let drawn = FamilyOptions::default()
        .block_bytes(c.pick(&[64, 128, 300, 1024, 4096, 65536]))
        .filter_bits_per_key(c.pick(&[0, 1, 5, 10, 20]))
        .compression(c.pick(&[Compression::None, Compression::Lz4, Compression::Zstd]))
        .bottom_compression(c.pick(&[
            None,
            Some(Compression::None),
            Some(Compression::Lz4),
            Some(Compression::Zstd),
        ]))
        .table_bytes(c.pick(&[1024, 3000, 16 << 10, 64 << 20]))
        .l0_compaction_trigger(trigger)
        .l0_slowdown(trigger + c.below(9) as usize)
        .debt_slowdown_bytes(c.pick(&[20_000, 1 << 20, 64 << 30]))
        .base_level_bytes(c.pick(&[1024, 5000, 64 << 10, 256 << 20]))
        .level_multiplier(c.within(2, 11) as u32)
        .compaction_filter(
            (c.percent(50)).then(|| Arc::new(ExpiredValueFilter) as Arc<dyn CompactionFilter>),
        )
        .min_blob_size(c.pick(&[None, None, Some(1), Some(10), Some(100), Some(1000)]));
    // The number derives from other draws: a draw of its own would give every seed other settings.
    let n = drawn.block_bytes + drawn.level_multiplier as usize;
    drawn.blob_compression([Compression::None, Compression::Lz4, Compression::Zstd][n % 3])
}

/// Draws settings of pages: small ones with short chains, mostly.
fn pages(c: &mut Rng) -> TreeOptions {
    let drawn = TreeOptions::default()
        .page_bytes(c.pick(&[256, 400, 1000, 64 << 10]))
        .block_bytes(c.pick(&[16, 64, 4096]))
        .extent_bytes(c.pick(&[4 << 10, 8 << 10, 64 << 10]))
        .max_deltas(c.pick(&[2, 2, 3, 8]))
        .overwrite_ratio(c.pick(&[0.0, 0.5, 2.5]))
        .compression(c.pick(&[Compression::None, Compression::Lz4, Compression::Zstd]))
        .base_garbage(c.pick(&[0.05, 0.3, 0.5]))
        .delta_garbage(c.pick(&[0.05, 0.5, 0.75]))
        .checkpoint_bytes(c.pick(&[0, 300, 4000, 16 << 20]));
    // The number derives from other draws: a draw of its own would give every seed other settings.
    let n = drawn.page_bytes / 100 + drawn.max_deltas + drawn.checkpoint_bytes as usize / 300;
    let drawn = drawn.leaf_delta_bytes([None, Some(0), Some(100), Some(1 << 20)][n % 4]);
    let drawn = drawn.cold_merge_ratio([0.25, 0.0, 10.0][n / 2 % 3]);
    let drawn = drawn.max_space_amp([1.5, 1.05, 3.0][n / 3 % 3]);
    let drawn = drawn.mapping_bytes([0, 2000, 16 << 20][n % 3]);
    drawn.usage_bytes([8 << 20, 0, 300][n / 5 % 3])
}

fn of<'a>(options: &'a mut Options, family: &str) -> &'a mut FamilyOptions {
    match family {
        "default" => &mut options.default_family,
        _ => options.families.get_mut(family).expect("each has its own"),
    }
}

/// Gives every family settings of its own, with its operator.
fn give_operators(options: &mut Options) {
    for (n, name) in FAMILIES.iter().enumerate() {
        if n > 0 && !options.families.contains_key(*name) {
            let same = options.default_family.clone();
            options.families.insert((*name).to_string(), same);
        }
        of(options, name).merge_operator = Some(operator(n));
    }
}

impl Settings {
    /// Returns the set of this number for a history.
    pub fn of(seed: u64, set: u64) -> Settings {
        let mut c = Rng::of(&[seed, set, 32]);
        let plain = set == 0;
        Settings {
            seed,
            set,
            write_unit: if plain {
                512
            } else {
                c.pick(&[512, 512, 4096])
            },
            threads: (!plain && c.percent(30)).then(|| c.within(1, 4) as usize),
            memory_bytes: if plain {
                16 << 20
            } else {
                c.pick(&[2 << 20, 16 << 20, 256 << 20])
            },
            cache_bytes: if plain {
                1 << 20
            } else {
                c.pick(&[0, 3000, 64 << 10, 1 << 20, 64 << 20])
            },
            open_files: if plain {
                4096
            } else {
                c.pick(&[1, 3, 10, 4096])
            },
            changing: !plain && c.percent(40),
            steps: if plain { 20 } else { c.pick(&[0, 5, 50, 100]) },
            fill_cache: plain || c.percent(70),
            read_budget: if plain {
                1 << 20
            } else {
                c.pick(&[1, 500, 5000, 1 << 20])
            },
            checkpoint: if plain {
                CheckpointOptions::default()
            } else {
                CheckpointOptions::default()
                    .flush_above_bytes(c.pick(&[0, 2048, 4 << 20]))
                    .copy_tables(c.percent(50))
            },
            bottommost: if plain {
                Bottommost::Force
            } else {
                c.pick(&[Bottommost::Force, Bottommost::Skip, Bottommost::IfFilter])
            },
            exclusive: !plain && c.percent(30),
            relocate_values: !plain && c.percent(50),
            ingests: if plain { 0 } else { c.pick(&[0, 20, 70]) },
        }
    }

    /// Returns the store's options in its life of this number.
    pub fn options(&self, life: u64) -> Options {
        let mut options = Options::default();
        if self.set == 0 {
            give_operators(&mut options);
            return options;
        }
        let life = if self.changing { life } else { 0 };
        let mut c = Rng::of(&[self.seed, self.set, life, 33]);
        options.write_buffer_bytes = c.pick(&[4096, 9000, 40_000, 1 << 20, 64 << 20]);
        options.max_sealed_memtables = c.within(1, 5) as usize;
        options.idle_release = Duration::from_millis(c.pick(&[0, 3, 8, 60_000]));
        options.default_family = family(&mut c);
        for name in &FAMILIES[1..] {
            if c.percent(60) {
                let own = family(&mut c);
                options.families.insert((*name).to_string(), own);
            }
        }
        give_operators(&mut options);
        for (n, name) in FAMILIES.iter().enumerate() {
            let extractor = draw_extractor(&mut c, n);
            of(&mut options, name).prefix_extractor = extractor;
        }
        options.max_space_amp = c.pick(&[1.05, 1.1, 1.25, 3.0]);
        for (n, name) in FAMILIES.iter().enumerate() {
            if self.is_in_pages(n) {
                let family = of(&mut options, name);
                family.pages = Some(pages(&mut Rng::of(&[self.seed, self.set, life, 36])));
            }
        }
        options.validate().expect("drawn inside the limits");
        options
    }

    /// Returns true if a family is kept in pages, in each life of the store.
    pub fn is_in_pages(&self, family: usize) -> bool {
        self.set > 0 && Rng::of(&[self.seed, self.set, family as u64, 37]).percent(35)
    }

    /// Returns the options of a store that exists. They are those of [`Settings::options`], but a
    /// share leaves out built-in operators, whose names the store knows.
    pub fn options_of_known(&self, life: u64) -> Options {
        let mut options = self.options(life);
        let mut c = Rng::of(&[self.seed, self.set, life, 35]);
        for name in &FAMILIES[1..] {
            if self.set > 0 && c.percent(40) {
                of(&mut options, name).merge_operator = None;
            }
        }
        options
    }

    /// Returns the store's environment.
    pub fn environment(
        &self,
        disk: Arc<dyn FileSystem>,
        manual_clock: Arc<ManualClock>,
        life: u64,
    ) -> Env {
        let seed = crate::rng::mix(self.seed ^ (self.set << 20) ^ (life << 40));
        let built = match self.threads {
            None => EnvBuilder::for_tests(disk, seed),
            Some(n) => EnvBuilder::new(disk).threads(n).seed(seed),
        };
        built
            .clock(Clock::manual(manual_clock))
            .memory_bytes(self.memory_bytes)
            .cache_bytes(self.cache_bytes)
            .open_files(self.open_files)
            .build()
    }

    /// Returns true if threads do the background work.
    pub fn threaded(&self) -> bool {
        self.threads.is_some()
    }
}
