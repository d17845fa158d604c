//! Values keep their kinds in JSON.

use super::*;

#[test]
fn values_keep_their_kinds() {
    let fields = [
        ("id", ValueRef::Integer(1), SqlType::Integer),
        ("b", ValueRef::Integer(0), SqlType::Boolean),
        ("x", ValueRef::Real(1.5), SqlType::Double),
        ("inf", ValueRef::Real(f64::INFINITY), SqlType::Double),
        ("none", ValueRef::Null, SqlType::Text),
        ("t\"", ValueRef::Text("a\n\"b"), SqlType::Text),
        ("j", ValueRef::Text("{\"a\":\n[1]}"), SqlType::Json),
        ("bad", ValueRef::Text("{"), SqlType::Jsonb),
        ("bytes", ValueRef::Blob(b"\0A"), SqlType::Bytea),
        (
            "at",
            ValueRef::Text("2024-01-02 03:04:05"),
            SqlType::Timestamptz,
        ),
    ];
    let mut out = String::new();
    object(fields, &mut out);
    assert_eq!(
        out,
        "{\"id\":1,\"b\":false,\"x\":1.5,\"inf\":\"Infinity\",\"none\":null,\"t\\\"\":\"a\\n\\\"b\",\
         \"j\":{\"a\": [1]},\"bad\":\"{\",\"bytes\":\"\\\\x0041\",\"at\":\"2024-01-02 03:04:05+00\"}"
    );
    serde_json::from_str::<serde_json::Value>(&out).expect("one document");
}
