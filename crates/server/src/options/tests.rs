//! Tests of the module `options`.

use super::*;

#[test]
fn the_limits_of_one_client_fit_the_memory_of_all() {
    for (budget, bound, bulk, request, reply) in [
        (0, 64, 16, 24, 32),
        (512, 256, 64, 96, 128),
        (4096, 2048, 512, 768, 1024),
        (65536, 32768, 512, 1024, 1024),
    ] {
        let mut o = ServerOptions::default();
        o.fit(budget << 20);
        assert_eq!(o.client_memory_bytes, bound << 20);
        assert_eq!(o.max_bulk_bytes, bulk << 20);
        assert_eq!(o.max_request_bytes, request << 20);
        assert_eq!(o.reply_hard_bytes, reply << 20);
        o.validate().unwrap();
    }
    let mut o = ServerOptions {
        client_memory_bytes: 5,
        ..ServerOptions::default()
    };
    o.fit(0);
    assert_eq!((o.client_memory_bytes, o.max_bulk_bytes), (5, 512 << 20));
}
