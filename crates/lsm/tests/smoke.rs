//! smoke
use basalt_env::Env;
use basalt_fs::sim::*;
use basalt_lsm::*;

#[test]
fn smoke() {
    let sim = SimFs::new(SimOptions::default());
    let env = Env::for_tests(sim.clone(), 1);
    let opts = Options { write_buffer_bytes: 16 << 10, ..Options::default() };
    let db = Db::open(&env, "db", opts.clone()).unwrap();
    let f = db.default_family();
    for i in 0..2000u32 {
        let k = format!("key{:05}", i * 7919 % 2000);
        db.put(&f, k.as_bytes(), format!("value{i}").as_bytes(), &WriteOptions { sync: i % 10 == 0 }).unwrap();
        if i % 50 == 0 { env.jobs().step(); }
    }
    for i in 0..2000u32 {
        let k = format!("key{:05}", i * 7919 % 2000);
        assert_eq!(&db.get(&f, k.as_bytes(), &ReadOptions::default()).unwrap().unwrap()[..], format!("value{i}").as_bytes());
    }
    println!("{:?}", db.stats());
    db.settle().unwrap();
    db.close().unwrap();
    let r = Db::verify_store(&env, "db", &opts, &mut |_, _| ()).unwrap();
    println!("{r:?}");
    assert!(r.damage.is_empty() && r.orphans.is_empty());
    let db = Db::open(&env, "db", opts.clone()).unwrap();
    let f = db.default_family();
    let mut it = db.iter(&f, &ReadOptions::default()).unwrap();
    it.seek_to_first().unwrap();
    let mut n = 0;
    while it.valid() { n += 1; it.next().unwrap(); }
    assert_eq!(n, 2000);
    drop(it);
    for i in 0..100u32 {
        db.put(&f, format!("x{i}").as_bytes(), b"v", &WriteOptions::SYNC).unwrap();
    }
    db.abandon();
    let sim2 = sim.crash(CrashPolicy::AnySubset, 7);
    let env = Env::for_tests(sim2, 2);
    let db = Db::open(&env, "db", opts.clone()).unwrap();
    let f = db.default_family();
    assert!(db.get(&f, b"x99", &ReadOptions::default()).unwrap().is_some());
}
