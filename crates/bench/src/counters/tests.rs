//! Tests of the module `counters`.

use super::*;

#[test]
fn proc_files_of_the_kernel_are_parsed() {
    let stat = " 93048 29046 7797754 25380 9780 19524 1523496 7221 0 11688 33124 4000 80 552392 496 437 25\n";
    assert_eq!(parse_stat(stat), Some((7797754 * 512, 1523496 * 512)));
    assert_eq!(parse_stat("1 2"), None);
    assert_eq!(field("a: 1\nVmHWM:\t  12 kB\n", "VmHWM:"), Some(12));
    assert!(peak_rss().is_some_and(|n| n > 0));
    reset_peak_rss();
    let counts = Counters::new(Path::new(".")).read(FsStats::default());
    assert!(counts.process.is_some());
    assert_eq!(counts.since(&counts).process, Some((0, 0)));
    assert_eq!(Counts::zero().plus(&counts), counts);
    let stat = "7 (a) b (c)) R 1 2 3 4 5 6 7 8 9 10 250 50 0 0 20 0 1";
    assert_eq!(cpu_ticks(stat), Some(300));
    assert_eq!(cpu_ticks("7 (a) R 1"), None);
    let before = Process::now();
    assert!(before.read_calls > 0);
    let more = read_kernel_file(Path::new("/proc/self/stat"));
    assert!(more.is_some() && Process::now().since(&before).read_calls > 0);
}
