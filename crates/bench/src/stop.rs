//! The reason why a run ended early.

/// The reason why a run ended early.
#[derive(Debug)]
pub struct Stop {
    /// One sentence that says what to do.
    pub sentence: String,
    /// The error, if a write to standard output failed.
    pub output: Option<std::io::Error>,
}

impl Stop {
    /// Makes a stop from a sentence.
    pub fn new(sentence: impl Into<String>) -> Stop {
        Stop {
            sentence: sentence.into(),
            output: None,
        }
    }
}

impl From<basalt::Error> for Stop {
    fn from(e: basalt::Error) -> Stop {
        Stop::new(e.to_string())
    }
}
