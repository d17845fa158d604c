//! Texts of times are read as they are written.

use super::*;

#[test]
fn times_are_read_as_they_are_written() {
    for (ms, text) in [
        (0, "1970-01-01T00:00:00.000Z"),
        (951_782_400_123, "2000-02-29T00:00:00.123Z"),
        (1_735_786_845_678, "2025-01-02T03:00:45.678Z"),
        (4_102_444_799_999, "2099-12-31T23:59:59.999Z"),
    ] {
        assert_eq!(format_ms(ms), text);
        assert_eq!(parse_ms(text), Some(ms));
    }
    for day in 0..200_000u64 {
        let ms = day * 86_400_000 + 1;
        assert_eq!(parse_ms(&format_ms(ms)), Some(ms));
    }
    format_ms(u64::MAX);
}

#[test]
fn zones_and_short_forms_are_read() {
    let want = parse_ms("2025-01-02T03:04:00.000Z");
    for text in [
        "2025-01-02 03:04Z",
        "2025-01-02T04:04:00+01:00",
        "2025-01-02 01:34:00.0-0130",
        "2025-01-02 05:04:00.0001+02",
        "2025-01-02 03:04:00 UTC",
    ] {
        assert_eq!(parse_ms(text), want, "{text}");
    }
    for text in [
        "",
        "2025-01-02",
        "2025-01-02 03:04",
        "2025-02-29 03:04Z",
        "2025-13-01 03:04Z",
        "2025-01-02 24:00Z",
        "2025-01-02 03:04:00.Z",
        "2025-01-02 03:04+1",
        "2025-01-02 03:04Zx",
        "1960-01-02 03:04Z",
        "éééé-01-02 03:04Z",
    ] {
        assert_eq!(parse_ms(text), None, "{text}");
    }
}
