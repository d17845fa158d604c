//! Unit tests of `campaign`.

use super::Scale;

fn scale(text: &str) -> Scale {
    text.parse().expect("a scale")
}

#[test]
fn a_scale_multiplies_counts_and_floors() {
    let (once, thrice) = (scale("1"), scale("3"));
    assert_eq!((7 * once, 7 * thrice), (7, 21));
    assert_eq!((once.floor(100), thrice.floor(100)), (100, 300));
    // A part is rounded up, so that no campaign is empty. Its floor is a quarter of the share.
    let part = once.third();
    assert_eq!((1 * part, 7 * part, 9 * part), (1, 3, 3));
    assert_eq!((part.floor(120), part.floor(1)), (10, 1));
    // A third of three is the default, floors included.
    let default = thrice.third();
    assert_eq!((7 * default, default.floor(100)), (7, 100));
}

#[test]
fn only_valid_scales_are_parsed() {
    for text in ["1", "3", "1/3", "3/3"] {
        assert_eq!(scale(text).to_string(), text);
    }
    for text in ["", "0", "1/0", "0/3", "-1", "0.5", "1/3/2", "three"] {
        assert!(text.parse::<Scale>().is_err(), "{text:?}");
    }
}
