//! Segments are read as they were written, and other bytes are refused.

use super::*;
use basalt_env::Random;

fn entries(random: &Random, count: u64) -> Vec<ReverseEntry> {
    let mut end = 64;
    (0..count)
        .map(|_| {
            let offset = end + random.below(600);
            let len = random.below(5000) as u32;
            end = offset + u64::from(len);
            ReverseEntry {
                log: random.below(300),
                lsn: random.next_u64() >> random.below(64),
                location: Location {
                    file: 9,
                    offset,
                    len,
                },
            }
        })
        .collect()
}

#[test]
fn segments_are_read_as_they_were_written() {
    for seed in 0..200 {
        let random = Random::from_seed(seed);
        let all = entries(&random, random.below(200));
        let mut builder = ReverseIndexBuilder::default();
        let mut segments = Vec::new();
        for entry in &all {
            builder.add_all([*entry]);
            if builder.is_full() {
                segments.push(builder.take_segment(false));
                builder.note_segment(segments.len() as u64 * 1000);
            }
        }
        let last = builder.take_segment(true);
        let (others, tail) = decode(&last, 9).unwrap();
        assert_eq!(
            others,
            (1..=segments.len() as u64)
                .map(|i| i * 1000)
                .collect::<Vec<_>>()
        );
        let mut found = Vec::new();
        for segment in &segments {
            let (others, entries) = decode(segment, 9).unwrap();
            assert!(others.is_empty());
            found.extend(entries);
        }
        found.extend(tail);
        assert_eq!(found, all);
    }
}

#[test]
fn bytes_that_are_no_segment_are_refused() {
    let mut refused = 0;
    for seed in 0..2000 {
        let random = Random::from_seed(seed);
        let mut builder = ReverseIndexBuilder::default();
        entries(&random, 20)
            .into_iter()
            .for_each(|entry| builder.add_all([entry]));
        let mut bytes = builder.take_segment(true);
        let at = random.below(bytes.len() as u64) as usize;
        match random.below(3) {
            0 => bytes[at] ^= 1 << random.below(8),
            1 => bytes[at] = 0xff,
            _ => bytes.truncate(at),
        }
        refused += u32::from(decode(&bytes, 9).is_none());
    }
    assert!(refused > 300, "only {refused} were refused");
}
