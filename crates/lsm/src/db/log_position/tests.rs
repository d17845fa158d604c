//! Unit tests of `position`.
