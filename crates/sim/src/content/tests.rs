//! Unit tests of `content`.

use super::*;
use crate::rng::Rng;

#[test]
fn content_equals_a_vec_and_clones_are_independent() {
    let mut c = Rng::new(1);
    let mut content = Content::default();
    let mut model = vec![0u8; 700_000];
    let mut old: Option<(Content, Vec<u8>)> = None;
    for i in 0..400 {
        let at = c.below(690_000);
        let mut bytes = vec![0; c.below(9_000) as usize + 1];
        c.fill(&mut bytes);
        match i % 10 {
            7 => {
                content.punch(at / CHUNK..at / CHUNK + 2);
                let from = (at / CHUNK * CHUNK) as usize;
                let to = (from + 8192).min(model.len());
                model[from..to].fill(0);
            }
            9 if i % 100 == 99 => {
                content.cut(at);
                model[at as usize..].fill(0);
            }
            _ => {
                content.write(at, &bytes);
                let to = (at as usize + bytes.len()).min(model.len());
                model[at as usize..to].copy_from_slice(&bytes[..to - at as usize]);
            }
        }
        assert_eq!(content.to_vec(0, 700_000), model, "step {i}");
        if let Some((content, model)) = &old {
            assert_eq!(&content.to_vec(0, 700_000), model);
        }
        if i % 37 == 0 {
            old = Some((content.clone(), model.clone()));
        }
    }
}

#[test]
fn distant_chunks_survive_growth_cuts_and_clones() {
    let mut content = Content::default();
    let far = 1 << 32;
    for at in [0, 5 << 20, far] {
        content.write(at + 100, b"here");
        assert_eq!(content.to_vec(at + 99, 6), b"\0here\0", "{at}");
    }
    let old = content.clone();
    assert!(content.is_clone_of(&old));
    content.cut(6 << 20);
    assert!(!content.is_clone_of(&old));
    assert_eq!(content.to_vec(far + 100, 4), [0; 4]);
    assert_eq!(content.to_vec((5 << 20) + 100, 4), b"here");
    content.cut(0);
    content.write(far, b"again");
    assert_eq!(content.to_vec(far, 5), b"again");
    assert_eq!(content.to_vec(100, 4), [0; 4]);
    assert_eq!(old.to_vec(far + 100, 4), b"here");
    assert_eq!(old.to_vec(100, 4), b"here");
}
