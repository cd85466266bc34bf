//! The small model inside the binary.

use checkpoint::{Checkpoint, CheckpointError, Folder};

/// Aligned like a mapped file.
#[repr(align(4096))]
struct Aligned<T: ?Sized>(T);

static WEIGHTS: &Aligned<[u8]> = &Aligned(*include_bytes!("../../../models/nano-e-4bit/model.safetensors"));

const NAME: &str = "nano-e-4bit (built in)";

static FILES: [(&str, &[u8]); 7] = [
    ("model.safetensors", &WEIGHTS.0),
    ("config.json", include_bytes!("../../../models/nano-e-4bit/config.json")),
    ("generation_config.json", include_bytes!("../../../models/nano-e-4bit/generation_config.json")),
    ("processor_config.json", include_bytes!("../../../models/nano-e-4bit/processor_config.json")),
    ("tokenizer.json", include_bytes!("../../../models/nano-e-4bit/tokenizer.json")),
    ("tokenizer_config.json", include_bytes!("../../../models/nano-e-4bit/tokenizer_config.json")),
    ("chat_template.jinja", include_bytes!("../../../models/nano-e-4bit/chat_template.jinja")),
];

/// Opens it.
pub fn open() -> Result<Checkpoint, CheckpointError> {
    Checkpoint::from_memory(NAME, &FILES)
}

/// Its files.
pub fn folder() -> Folder {
    Folder::from_memory(NAME, &FILES)
}
