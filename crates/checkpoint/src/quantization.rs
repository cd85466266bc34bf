//! What `config.json` says of quantization: a block of mlx's, with defaults for the whole model and
//! statements for single modules.
//!
//! A module is quantized if its `scales` are in the file; the block only tells how. What it leaves
//! open has at most two readings, and the tensors' shapes prove one of them: nothing is guessed.

use std::collections::BTreeMap;

use serde_json::{Map, Value};

use crate::error::{CheckpointError, Problem, ProblemKind, quoted};
use crate::quant::{FormatError, QuantFormat};
use crate::source::kind_of;

/// The quantization block of a configuration.
#[derive(Clone, Debug, Default)]
pub struct Quantization {
    defaults: Option<Settings>,
    /// By the module's path without its prefix; two keys may mean one module.
    overrides: BTreeMap<String, Vec<(String, Override)>>,
}

/// What is stated of one module.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Stated {
    /// There is no quantization block: every module is dense.
    NoBlock,
    /// The block says that this module is not quantized.
    Dense,
    /// In this format, or in one of these where the block leaves a field open; never empty.
    Formats(Vec<QuantFormat>),
}

/// Fields of the block or of one module's statement; what is absent is left open.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Settings {
    mode: Option<String>,
    bits: Option<u64>,
    group_size: Option<u64>,
}

#[derive(Clone, Debug, PartialEq, Eq)]
enum Override {
    Dense,
    Settings(Settings),
}

impl Quantization {
    /// Reads `quantization`, else `quantization_config`, else the latter inside `text_config`.
    /// Refuses another project's method by name; pushes what it does not know to `warnings`.
    pub(crate) fn read(
        config: &Map<String, Value>,
        warnings: &mut Vec<String>,
    ) -> Result<Quantization, CheckpointError> {
        let own = present(config, "quantization");
        let second = present(config, "quantization_config");
        let inner = config.get("text_config").and_then(Value::as_object);
        let third = inner.and_then(|text| present(text, "quantization_config"));
        let (key, block) = match (own, second, third) {
            (Some(block), second, _) => {
                if second.is_some_and(|second| second != block) {
                    let sentence = "config.json: quantization and quantization_config differ; the first counts";
                    warnings.push(sentence.to_owned());
                }
                ("quantization", block)
            }
            (None, Some(block), _) => ("quantization_config", block),
            (None, None, Some(block)) => ("text_config.quantization_config", block),
            (None, None, None) => return Ok(Quantization::default()),
        };
        let Value::Object(block) = block else {
            return Err(wrong(format!("{key} is {}, wanted an object", kind_of(block))));
        };
        if let Some(method) = block.get("quant_method").filter(|method| *method != "mlx" && !method.is_null()) {
            let method = method.as_str().map_or_else(|| kind_of(method).to_owned(), quoted);
            return Err(CheckpointError::ForeignQuantization { method });
        }
        let defaults = Settings::read(key, block)?;
        let mut overrides: BTreeMap<String, Vec<_>> = BTreeMap::new();
        for (name, value) in block {
            let stated = match value {
                _ if Settings::is_field(name) => continue,
                Value::Bool(false) => Override::Dense,
                Value::Object(fields) => {
                    let path = format!("{key} of {}", quoted(name));
                    for field in fields.keys().filter(|field| !Settings::is_field(field)) {
                        let field = quoted(field);
                        warnings.push(format!("config.json: {path}: {field} is not known and not followed"));
                    }
                    Override::Settings(Settings::read(&path, fields)?)
                }
                // As quantized as the rest: nothing is stated.
                Value::Bool(true) | Value::Null => continue,
                _ => {
                    let name = quoted(name);
                    warnings.push(format!("config.json: {key}: {name} is not known and not followed"));
                    continue;
                }
            };
            overrides.entry(without_prefix(name).to_owned()).or_default().push((name.clone(), stated));
        }
        Ok(Quantization { defaults: Some(defaults), overrides })
    }

    /// Whether there is a quantization block at all.
    pub fn is_present(&self) -> bool {
        self.defaults.is_some()
    }

    /// The format of modules that nothing else is said of; `None` without a block, or if the block
    /// names a format that is not read.
    pub fn default_format(&self) -> Option<QuantFormat> {
        self.defaults.as_ref()?.formats(None).ok()?.first().copied()
    }

    /// What is stated of a module, found under its full path and with or without the prefixes
    /// `language_model.` and `model.`.
    ///
    /// An error if two keys contradict each other, or if the format is not one that is read.
    pub fn stated(&self, module: &str) -> Result<Stated, Problem> {
        let Some(defaults) = &self.defaults else { return Ok(Stated::NoBlock) };
        let unsupported = |error: FormatError| Problem::new(ProblemKind::Unsupported, module, error.to_string());
        let Some(entries) = self.overrides.get(without_prefix(module)) else {
            return Ok(Stated::Formats(defaults.formats(None).map_err(unsupported)?));
        };
        let (first_key, first) = &entries[0];
        if let Some((other_key, _)) = entries.iter().find(|(_, other)| other != first) {
            let sentence = format!(
                "config.json states two different quantizations for it, as {} and as {}",
                quoted(first_key),
                quoted(other_key)
            );
            return Err(Problem::new(ProblemKind::Ambiguous, module, sentence));
        }
        match first {
            Override::Dense => Ok(Stated::Dense),
            Override::Settings(settings) => Ok(Stated::Formats(settings.formats(Some(defaults)).map_err(unsupported)?)),
        }
    }
}

impl Settings {
    /// `quantize_input` asks for rounded activations; the weights are the same with and without.
    fn is_field(name: &str) -> bool {
        matches!(name, "mode" | "bits" | "group_size" | "quantize_input" | "quant_method")
    }

    fn read(path: &str, fields: &Map<String, Value>) -> Result<Settings, CheckpointError> {
        let number = |field: &str| match fields.get(field) {
            None | Some(Value::Null) => Ok(None),
            Some(value) => value.as_u64().map(Some).ok_or_else(|| {
                let found = value.as_number().map_or_else(|| kind_of(value).to_owned(), |number| number.to_string());
                wrong(format!("{path}: {field} is {found}, wanted a whole number"))
            }),
        };
        let mode = match fields.get("mode") {
            None | Some(Value::Null) => None,
            Some(Value::String(mode)) => Some(mode.clone()),
            Some(other) => return Err(wrong(format!("{path}: mode is {}, wanted a string", kind_of(other)))),
        };
        Ok(Settings { mode, bits: number("bits")?, group_size: number("group_size")? })
    }

    /// The formats that these fields can mean; an error if none of them is read.
    ///
    /// Open fields of a module's statement come from the block (`inherited`), or are mlx's own
    /// defaults: converters exist that meant the one and the other.
    fn formats(&self, inherited: Option<&Settings>) -> Result<Vec<QuantFormat>, FormatError> {
        let mut readings = Vec::new();
        if let Some(inherited) = inherited {
            let mode = self.mode.as_deref().or(inherited.mode.as_deref());
            // Sizes are of a mode: those of another one do not carry over.
            let same_mode = mode.unwrap_or("affine") == inherited.mode.as_deref().unwrap_or("affine");
            let inherit = |own: Option<u64>, other: Option<u64>| own.or(if same_mode { other } else { None });
            let bits = inherit(self.bits, inherited.bits);
            readings.push(format_of(mode, bits, inherit(self.group_size, inherited.group_size)));
        }
        readings.push(format_of(self.mode.as_deref(), self.bits, self.group_size));
        let mut formats = Vec::new();
        let mut refusal = None;
        for reading in readings {
            match reading {
                Ok(format) if formats.contains(&format) => {}
                Ok(format) => formats.push(format),
                Err(error) => refusal = refusal.or(Some(error)),
            }
        }
        match refusal {
            Some(error) if formats.is_empty() => Err(error),
            _ => Ok(formats),
        }
    }
}

/// The format of these fields; what is absent as mlx has it (affine, 4 bits, groups of 64).
fn format_of(mode: Option<&str>, bits: Option<u64>, group_size: Option<u64>) -> Result<QuantFormat, FormatError> {
    let format = match mode.unwrap_or("affine") {
        "affine" => return QuantFormat::affine(bits.unwrap_or(4), group_size.unwrap_or(64)),
        "mxfp4" => QuantFormat::Mxfp4,
        "mxfp8" => QuantFormat::Mxfp8,
        "nvfp4" => QuantFormat::Nvfp4,
        other => {
            return Err(FormatError(format!(
                "quantization mode {} is not read; affine, mxfp4, mxfp8 and nvfp4 are",
                quoted(other)
            )));
        }
    };
    let (own_bits, own_group) = (format.bits() as u64, format.group_size() as u64);
    let (bits, group_size) = (bits.unwrap_or(own_bits), group_size.unwrap_or(own_group));
    if (bits, group_size) != (own_bits, own_group) {
        return Err(FormatError(format!(
            "{format} of {bits} bits in groups of {group_size} does not exist; it has {own_bits} bits in groups of {own_group}"
        )));
    }
    Ok(format)
}

/// The path without the prefixes that converters add and drop: `language_model.model.layers.0`,
/// `model.language_model.layers.0`, `model.layers.0` and `layers.0` are one module.
fn without_prefix(module: &str) -> &str {
    let mut path = module;
    while let Some(rest) = path.strip_prefix("language_model.").or_else(|| path.strip_prefix("model.")) {
        path = rest;
    }
    path
}

fn present<'a>(config: &'a Map<String, Value>, key: &str) -> Option<&'a Value> {
    config.get(key).filter(|value| !value.is_null())
}

fn wrong(reason: String) -> CheckpointError {
    CheckpointError::Json { file: "config.json".to_owned(), reason }
}
