//! Commands that write files end in order when they are interrupted, so that no half-written file stays.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

/// Whether the command was interrupted: Ctrl-C, or the system's word to end.
pub struct Interrupt(Arc<AtomicBool>);

impl Interrupt {
    /// Watches from now on. The second interruption ends the process at once.
    pub fn watch() -> Interrupt {
        let came = Arc::new(AtomicBool::new(false));
        let seen = came.clone();
        let handler = move || {
            if seen.swap(true, Ordering::Relaxed) {
                std::process::exit(130);
            }
        };
        // Without a handler an interruption ends the process, as it always did.
        let _ = ctrlc::set_handler(handler);
        Interrupt(came)
    }

    /// Whether it came.
    pub fn came(&self) -> bool {
        self.0.load(Ordering::Relaxed)
    }
}
