//! The example models, where they are at hand: trained weights as converters really write them.

use std::io::Write;
use std::path::PathBuf;

use markbase_checkpoint::{Checkpoint, DType, MatrixSource, QuantFormat, quantize};

/// The folder of example models, or a line that tells that the test proved nothing.
fn models() -> Option<PathBuf> {
    let folder = PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("../../../shared/models");
    if folder.is_dir() {
        return Some(folder);
    }
    // The handle itself: what the macros print is held back while tests pass.
    let _ = writeln!(std::io::stderr(), "SKIPPED: no example models at {}", folder.display());
    None
}

#[test]
fn every_example_opens_without_a_warning() {
    let Some(models) = models() else { return };
    for name in ["nano-e", "nano-e-4bit", "nano-unified", "nano-dense-8bit", "nano-moe-8bit"] {
        let checkpoint = Checkpoint::open(models.join(name)).unwrap();
        assert_eq!(checkpoint.name(), name);
        assert!(checkpoint.warnings().is_empty(), "{name}: {:?}", checkpoint.warnings());
        assert!(checkpoint.folder().file("tokenizer.json").unwrap().is_some());
        assert!(checkpoint.folder().json("generation_config.json").unwrap().is_some());
        assert!(checkpoint.folder().json("preprocessor_config.json").unwrap().is_none());
        // Nothing but what weights are made of.
        for info in checkpoint.tensors() {
            assert!(matches!(info.dtype, DType::BF16 | DType::F32 | DType::U32), "{name} {}", info.name);
        }
    }
}

#[test]
fn every_packed_tensor_of_the_examples_is_proved() {
    let Some(models) = models() else { return };
    for (name, format) in [("nano-e-4bit", "q4 g64"), ("nano-dense-8bit", "q8 g64"), ("nano-moe-8bit", "q8 g64")] {
        let checkpoint = Checkpoint::open(models.join(name)).unwrap();
        let mut proved = 0;
        for scales in checkpoint.tensors().filter(|info| info.name.ends_with(".scales")) {
            let module = scales.name.strip_suffix(".scales").unwrap();
            let mut shape = scales.shape.clone();
            *shape.last_mut().unwrap() *= 64;
            assert_eq!(checkpoint.matrix(module, &shape).unwrap().to_string(), format, "{name} {module}");
            proved += 1;
        }
        assert!(proved > 40, "{name}: {proved}");
        let packed = checkpoint.tensors().filter(|info| info.dtype == DType::U32).count();
        assert_eq!(packed, proved, "{name}: every packed tensor has its scales");
    }
}

/// The 4-bit example was made by mlx from the other one: our packing of its source gives its bytes,
/// and reading its rows gives values near the source's.
#[test]
fn packing_the_source_gives_the_converted_model() {
    let Some(models) = models() else { return };
    let source = Checkpoint::open(models.join("nano-e")).unwrap();
    let converted = Checkpoint::open(models.join("nano-e-4bit")).unwrap();
    let format = QuantFormat::affine(4, 64).unwrap();
    for (module, shape) in [
        ("embed_tokens", [3072, 192]),
        ("per_layer_model_projection", [640, 192]),
        ("layers.0.self_attn.q_proj", [192, 192]),
        ("layers.4.mlp.down_proj", [192, 256]),
        ("layers.9.mlp.up_proj", [512, 192]),
    ] {
        let dense = source.tensor(&format!("model.language_model.{module}.weight")).unwrap();
        assert_eq!(dense.info.shape, shape);
        let dense = dense.to_f32().unwrap();
        let packed = quantize(format, &dense, DType::BF16).unwrap();
        let matrix = converted.matrix(&format!("language_model.model.{module}"), &shape).unwrap();
        let MatrixSource::Quantized { weight, scales, biases: Some(biases), .. } = &matrix else {
            panic!("{module} is {matrix}");
        };
        let bytes = |name: &str| converted.tensor(name).unwrap().bytes;
        assert_eq!(packed.scales, bytes(scales), "{module}");
        assert_eq!(packed.biases.unwrap(), bytes(biases), "{module}");
        assert_eq!(packed.weight, bytes(weight), "{module}");

        let mut rows = vec![f32::NAN; 2 * shape[1]];
        converted.read_rows(&matrix, shape[1], 5..7, &mut rows);
        let largest = dense.iter().fold(0.0f32, |largest, value| largest.max(value.abs()));
        for (row, dense) in rows.iter().zip(&dense[5 * shape[1]..]) {
            assert!((row - dense).abs() < largest / 4.0, "{module}: {row} for {dense}");
        }
    }
}
