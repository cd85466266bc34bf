//! Ctrl-C: commands that write files end in order, so that no half-written file stays, and answers end within a step.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

/// Whether the command was interrupted: Ctrl-C, or the system's word to end.
#[derive(Clone, Default)]
pub struct Interrupt {
    came: Arc<AtomicBool>,
    /// Whether an answer is on its way.
    answering: Arc<AtomicBool>,
}

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

    /// Watches from now on for a conversation: an interruption ends the answer that is on its way; where there is none
    /// it ends the process. The system's word to end (SIGTERM, SIGHUP) always does.
    pub fn watch_answers() -> Interrupt {
        let interrupt = Interrupt::default();
        let answering = interrupt.answering.clone();
        let interrupt = interrupt.on_each(move || {
            if !answering.load(Ordering::Relaxed) {
                std::process::exit(130);
            }
        });
        #[cfg(unix)]
        for signal in [libc::SIGTERM, libc::SIGHUP] {
            // SAFETY: the default action runs no code of this process.
            unsafe { libc::signal(signal, libc::SIG_DFL) };
        }
        interrupt
    }

    fn on_each(self, act: impl Fn() + Send + 'static) -> Interrupt {
        let came = self.came.clone();
        let handler = move || {
            act();
            came.store(true, Ordering::Relaxed);
        };
        // Without a handler an interruption ends the process, as it always did.
        let _ = ctrlc::set_handler(handler);
        self
    }

    /// An answer is on its way until what is returned is dropped.
    pub fn for_an_answer(&self) -> Answering {
        self.answering.store(true, Ordering::Relaxed);
        Answering(self.answering.clone())
    }

    /// Whether it came.
    pub fn came(&self) -> bool {
        self.came.load(Ordering::Relaxed)
    }

    /// Whether it came since this was asked last.
    pub fn take(&self) -> bool {
        self.came.swap(false, Ordering::Relaxed)
    }
}

/// An answer is on its way.
pub struct Answering(Arc<AtomicBool>);

impl Drop for Answering {
    fn drop(&mut self) {
        self.0.store(false, Ordering::Relaxed);
    }
}
