#![allow(missing_docs)]
use basalt_fs::conformance::random_trace;
fn main() {
    let s: u64 = std::env::args().nth(1).unwrap().parse().unwrap();
    let n: usize = std::env::args().nth(2).unwrap().parse().unwrap();
    println!("{:#?}", random_trace(s, n));
}
