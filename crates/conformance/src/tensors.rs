//! A checkpoint that is made in memory, tensor by tensor.

use std::collections::BTreeMap;
use std::sync::Arc;

use checkpoint::{Checkpoint, CheckpointError, DType, decode_floats, encode_floats};
use serde_json::{Map, Value, json};

/// A configuration and tensors by name, to be altered at will and then read as a checkpoint.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct TensorSet {
    /// `config.json`.
    pub config: Map<String, Value>,
    tensors: BTreeMap<String, Tensor>,
}

#[derive(Debug, Clone, PartialEq)]
struct Tensor {
    dtype: DType,
    shape: Vec<usize>,
    bytes: Vec<u8>,
}

impl TensorSet {
    /// All that `checkpoint` holds, copied.
    pub fn of(checkpoint: &Checkpoint) -> TensorSet {
        let mut set = TensorSet { config: checkpoint.config().clone(), tensors: BTreeMap::new() };
        for info in checkpoint.tensors() {
            if let Some(view) = checkpoint.tensor(&info.name) {
                set.insert(&info.name, info.dtype, &info.shape, view.bytes.to_vec());
            }
        }
        set
    }

    /// Adds or replaces a tensor of little-endian, row-major bytes.
    pub fn insert(&mut self, name: &str, dtype: DType, shape: &[usize], bytes: Vec<u8>) {
        self.tensors.insert(name.to_owned(), Tensor { dtype, shape: shape.to_vec(), bytes });
    }

    /// Adds or replaces a tensor of floats; `dtype` is F32, F16 or BF16 (panics otherwise).
    pub fn insert_floats(&mut self, name: &str, dtype: DType, shape: &[usize], values: &[f32]) {
        let mut bytes = vec![];
        encode_floats(dtype, values, &mut bytes);
        self.insert(name, dtype, shape, bytes);
    }

    /// Shape and numbers of a tensor of floats; `None` if there is none of this name or it holds no floats.
    pub fn floats(&self, name: &str) -> Option<(&[usize], Vec<f32>)> {
        let tensor = self.tensors.get(name).filter(|tensor| tensor.dtype.is_float_weight())?;
        let mut values = vec![0.0; tensor.bytes.len() / tensor.dtype.bytes()];
        decode_floats(tensor.dtype, &tensor.bytes, &mut values);
        Some((&tensor.shape, values))
    }

    /// Rewrites the numbers of a tensor of floats in place, rounded to its type; says whether it is there.
    pub fn alter(&mut self, name: &str, alter: impl FnOnce(&mut [f32])) -> bool {
        let Some((_, mut values)) = self.floats(name) else { return false };
        alter(&mut values);
        if let Some(tensor) = self.tensors.get_mut(name) {
            tensor.bytes.clear();
            encode_floats(tensor.dtype, &values, &mut tensor.bytes);
        }
        true
    }

    /// Type, shape and bytes of a tensor.
    pub fn get(&self, name: &str) -> Option<(DType, &[usize], &[u8])> {
        self.tensors.get(name).map(|tensor| (tensor.dtype, tensor.shape.as_slice(), tensor.bytes.as_slice()))
    }

    /// Takes a tensor out; says whether it was there.
    pub fn remove(&mut self, name: &str) -> bool {
        self.tensors.remove(name).is_some()
    }

    /// Gives every tensor the name that `rename` makes of its own; `None` takes it out.
    pub fn rename(&mut self, rename: impl Fn(&str) -> Option<String>) {
        let tensors = std::mem::take(&mut self.tensors);
        self.tensors = tensors.into_iter().filter_map(|(name, tensor)| Some((rename(&name)?, tensor))).collect();
    }

    /// Every name, in order.
    pub fn names(&self) -> impl Iterator<Item = &str> {
        self.tensors.keys().map(String::as_str)
    }

    /// The checkpoint, under the same proofs as a folder. Its bytes stay in memory until the program ends.
    pub fn checkpoint(&self, name: &str) -> Result<Arc<Checkpoint>, CheckpointError> {
        let config: &'static [u8] = Value::Object(self.config.clone()).to_string().into_bytes().leak();
        let weights: &'static [u8] = self.safetensors().leak();
        Ok(Arc::new(Checkpoint::from_memory(name, &[("config.json", config), ("model.safetensors", weights)])?))
    }

    fn safetensors(&self) -> Vec<u8> {
        let mut header = Map::new();
        let mut end = 0;
        // Wider elements first, so that every tensor is aligned.
        let mut order: Vec<(&String, &Tensor)> = self.tensors.iter().collect();
        order.sort_by_key(|(_, tensor)| std::cmp::Reverse(tensor.dtype.bytes()));
        for (name, tensor) in &order {
            let start = end;
            end += tensor.bytes.len();
            let entry = json!({"dtype": tensor.dtype.name(), "shape": tensor.shape, "data_offsets": [start, end]});
            header.insert((*name).clone(), entry);
        }
        let mut header = Value::Object(header).to_string().into_bytes();
        header.resize(header.len().next_multiple_of(8), b' ');
        let mut file = Vec::with_capacity(8 + header.len() + end);
        file.extend((header.len() as u64).to_le_bytes());
        file.extend(header);
        for (_, tensor) in order {
            file.extend(&tensor.bytes);
        }
        file
    }
}
