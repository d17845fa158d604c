//! [`FamilyKey`]: a key of a family, in the family's order. Maps of such keys are searched with
//! borrowed keys, so that a look-up allocates nothing.

use basalt_kv::family::Family;
use basalt_kv::key::Cmp;
use std::borrow::Borrow;
use std::cmp::Ordering;

/// A family and a user key. Keys of one family are in the order of the family's comparator.
#[derive(Clone)]
pub struct FamilyKey {
    family: u32,
    cmp: Cmp,
    user_key: Box<[u8]>,
}

/// A family and a borrowed user key.
pub struct FamilyKeyRef<'a> {
    family: u32,
    cmp: &'a Cmp,
    user_key: &'a [u8],
}

/// The parts by which owned and borrowed keys are compared.
pub trait KeyParts {
    /// Returns the family's id, its comparator and the user key.
    fn parts(&self) -> (u32, &Cmp, &[u8]);
}

impl FamilyKey {
    /// Copies a key.
    pub fn new(family: &Family, user_key: &[u8]) -> FamilyKey {
        FamilyKey {
            family: family.id(),
            cmp: family.cmp().clone(),
            user_key: user_key.into(),
        }
    }

    /// Returns the user key.
    pub fn user_key(&self) -> &[u8] {
        &self.user_key
    }
}

impl<'a> FamilyKeyRef<'a> {
    /// Borrows a key.
    pub fn new(family: &'a Family, user_key: &'a [u8]) -> FamilyKeyRef<'a> {
        FamilyKeyRef {
            family: family.id(),
            cmp: family.cmp(),
            user_key,
        }
    }
}

impl KeyParts for FamilyKey {
    fn parts(&self) -> (u32, &Cmp, &[u8]) {
        (self.family, &self.cmp, &self.user_key)
    }
}

impl KeyParts for FamilyKeyRef<'_> {
    fn parts(&self) -> (u32, &Cmp, &[u8]) {
        (self.family, self.cmp, self.user_key)
    }
}

impl<'a> Borrow<dyn KeyParts + 'a> for FamilyKey {
    fn borrow(&self) -> &(dyn KeyParts + 'a) {
        self
    }
}

fn compare(a: &dyn KeyParts, b: &dyn KeyParts) -> Ordering {
    let ((a_family, cmp, a_key), (b_family, _, b_key)) = (a.parts(), b.parts());
    a_family.cmp(&b_family).then_with(|| cmp.user(a_key, b_key))
}

impl Ord for dyn KeyParts + '_ {
    fn cmp(&self, other: &Self) -> Ordering {
        compare(self, other)
    }
}

impl PartialOrd for dyn KeyParts + '_ {
    fn partial_cmp(&self, other: &Self) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}

impl PartialEq for dyn KeyParts + '_ {
    fn eq(&self, other: &Self) -> bool {
        compare(self, other).is_eq()
    }
}

impl Eq for dyn KeyParts + '_ {}

impl Ord for FamilyKey {
    fn cmp(&self, other: &Self) -> Ordering {
        compare(self, other)
    }
}

impl PartialOrd for FamilyKey {
    fn partial_cmp(&self, other: &Self) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}

impl PartialEq for FamilyKey {
    fn eq(&self, other: &Self) -> bool {
        compare(self, other).is_eq()
    }
}

impl Eq for FamilyKey {}
