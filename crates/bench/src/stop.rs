//! Why a run ended early.

/// Why a run ended early.
#[derive(Debug)]
pub struct Stop {
    /// One sentence that says what to do.
    pub sentence: String,
    /// The failed write to standard output, when it was that.
    pub output: Option<std::io::Error>,
}

impl Stop {
    /// With a sentence.
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
