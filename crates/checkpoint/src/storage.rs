//! The bytes of one weight file: a read-only shared mapping, or a constant of the program.

use std::fs::File;
use std::ops::Range;
use std::path::Path;

use memmap2::Mmap;

use crate::error::CheckpointError;

/// A weight file's bytes; they stay where they are for as long as this lives.
pub(crate) enum Storage {
    Mapped(Mmap),
    Static(&'static [u8]),
}

/// Pages are at most this large on the systems that this runs on (4, 16 and 64 KiB are met), and a
/// mapping of a whole file starts on a page, so that multiples of it are always page bounds.
const LARGEST_PAGE_BYTES: usize = 64 << 10;

impl Storage {
    /// Maps a whole file. `file` names it in errors.
    pub fn map(path: &Path, file: &str) -> Result<Storage, CheckpointError> {
        let refused = |source| CheckpointError::Io { path: path.to_owned(), source };
        // Asked before opening: opening a pipe would wait for its writer.
        if !std::fs::metadata(path).map_err(refused)?.is_file() {
            return Err(CheckpointError::NotAFile { file: file.to_owned() });
        }
        let opened = File::open(path).map_err(refused)?;
        let bytes = opened.metadata().map_err(refused)?.len();
        if bytes == 0 {
            return Ok(Storage::Static(&[])); // An empty mapping is refused by the system.
        }
        if isize::try_from(bytes).is_err() {
            return Err(CheckpointError::Unmappable { file: file.to_owned(), found: bytes });
        }
        // SAFETY: the mapping is read-only. Its bytes are plain numbers, so that a file changed
        // under it gives wrong numbers but no invalid values; `Checkpoint::open` says that files
        // must not be shortened while they are in use.
        let mapped = unsafe { Mmap::map(&opened) }.map_err(refused)?;
        Ok(Storage::Mapped(mapped))
    }

    pub fn bytes(&self) -> &[u8] {
        match self {
            Storage::Mapped(mapped) => mapped,
            Storage::Static(bytes) => bytes,
        }
    }

    /// Gives the pages that lie wholly inside `range` back to the system; they are read anew from
    /// the file when touched again. Only a hint: a refusal changes nothing but memory in use.
    pub fn release(&self, range: Range<usize>) {
        #[cfg(unix)] // Elsewhere there is no such hint.
        if let Storage::Mapped(mapped) = self {
            let first = range.start.next_multiple_of(LARGEST_PAGE_BYTES);
            let last = range.end / LARGEST_PAGE_BYTES * LARGEST_PAGE_BYTES;
            if first < last {
                // SAFETY: the mapping is shared, read-only and backed by a file: a dropped page
                // comes back with the same bytes, so that references into it stay true.
                let _ =
                    unsafe { mapped.unchecked_advise_range(memmap2::UncheckedAdvice::DontNeed, first, last - first) };
            }
        }
        #[cfg(not(unix))]
        let _ = range;
    }

    /// Asks the system to read `range` ahead. Only a hint.
    pub fn prefetch(&self, range: Range<usize>) {
        #[cfg(unix)]
        if let Storage::Mapped(mapped) = self
            && !range.is_empty()
        {
            let _ = mapped.advise_range(memmap2::Advice::WillNeed, range.start, range.len());
        }
        #[cfg(not(unix))]
        let _ = range;
    }
}
