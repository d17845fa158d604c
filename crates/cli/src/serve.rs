//! `serve`: the server over the store in `--dir`.

use crate::args;
use crate::failure::{Failure, Outcome};

/// `basalt serve`. Returns when SIGTERM or Ctrl-C ended it.
pub fn serve(args: args::Serve) -> Outcome {
    let _ = args;
    Err(Failure::new("todo"))
}
