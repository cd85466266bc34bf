//! Ctrl-C: commands that write files end in order, so that no half-written file stays, and answers end within a step.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

/// Whether the command was interrupted: Ctrl-C, or the system's word to end.
#[derive(Clone, Default)]
pub struct Interrupt(Arc<AtomicBool>);

impl Interrupt {
    /// Watches from now on. The second interruption ends the process at once.
    pub fn watch() -> Interrupt {
        let interrupt = Interrupt::default();
        let seen = interrupt.clone();
        interrupt.on_each(move || {
            if seen.came() {
                std::process::exit(130);
            }
        })
    }

    /// Watches from now on; no interruption ends the process.
    pub fn watch_patiently() -> Interrupt {
        Interrupt::default().on_each(|| {})
    }

    fn on_each(self, act: impl Fn() + Send + 'static) -> Interrupt {
        let came = self.0.clone();
        let handler = move || {
            act();
            came.store(true, Ordering::Relaxed);
        };
        // Without a handler an interruption ends the process, as it always did.
        let _ = ctrlc::set_handler(handler);
        self
    }

    /// Whether it came.
    pub fn came(&self) -> bool {
        self.0.load(Ordering::Relaxed)
    }

    /// Whether it came since this was asked last.
    pub fn take(&self) -> bool {
        self.0.swap(false, Ordering::Relaxed)
    }
}
