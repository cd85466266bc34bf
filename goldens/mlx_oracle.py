"""Converts and quantizes folders with mlx-vlm, runs them in f32 on the CPU and records the named sites."""
import contextlib
import importlib
import io
import json
import logging
import os
import shutil
import tempfile
from pathlib import Path
from unittest import mock

os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")  # one order of summation: the same bytes every time

import mlx.core as mx
import mlx.nn as nn
import mlx_vlm.utils
import numpy as np
import torch
from mlx.utils import tree_map
from mlx_vlm.models.gemma4 import language

import kinds

CONVERT = importlib.import_module("mlx_vlm.convert")  # `mlx_vlm.convert` itself is the function
mx.set_default_device(mx.cpu)


class NoProcessor:
    """Stands where `convert` wants a tokenizer: these models have none."""

    def save_pretrained(self, _folder):
        pass


def load_config(folder, **_):
    """The folder's config. mlx-vlm builds a vision tower for every gemma4 model, so one without gets the smallest
    here; mlx-vlm drops it again when it finds no weights for it."""
    config = json.loads((Path(folder) / "config.json").read_text())
    if config["vision_config"] is None and config["model_type"] == "gemma4":
        config["vision_config"] = kinds.vision()
    return config


def load_model(folder, lazy=False):
    with mock.patch.object(mlx_vlm.utils, "load_config", load_config), mock.patch.object(logging, "warning"):
        return mlx_vlm.utils.load_model(Path(folder), lazy=lazy)


def load(folder):
    """The folder's model with every float parameter (norms, scales, biases, unquantized weights) in f32; packed
    weights and the scale bytes of mxfp4, mxfp8 and nvfp4 stay as they are. So all activations are f32."""
    model = load_model(folder)
    model.update(tree_map(lambda p: p.astype(mx.float32) if mx.issubdtype(p.dtype, mx.floating) else p,
                          model.parameters()))
    return model


def convert(source, folder, group_size, bits, mode, overrides, keep_index):
    """`mlx_vlm.convert(source, quantize=True)` into `folder`.

    `overrides` gives modules formats of their own by the first matching end of their path: a dict as mlx-vlm writes it
    to the config, or False to leave the module unquantized.
    """
    def predicate(path, module):
        if mlx_vlm.utils.skip_multimodal_module(path) or not hasattr(module, "to_quantized"):
            return False
        for end, override in overrides.items():
            if path.endswith(end):
                unused.discard(end)
                return dict(override) if override else override
        return model.quant_predicate(path, module)  # mlx-vlm's own: the router at 8 bits

    unused = set(overrides)
    model, config = load_model(source, lazy=True), load_config(source)
    with tempfile.TemporaryDirectory() as scratch:
        with mock.patch.object(CONVERT, "fetch_from_hub", lambda *_a, **_k: (model, config, NoProcessor())), \
                mock.patch.object(CONVERT, "create_model_card", lambda *_: None), \
                contextlib.redirect_stdout(io.StringIO()):
            paths = [path for path, _ in model.named_modules()]
            CONVERT.convert(str(source), scratch, quantize=True, q_group_size=group_size, q_bits=bits, q_mode=mode,
                            quant_predicate=predicate)
        assert not unused, f"overrides that match no module: {unused}"
        folder.mkdir(parents=True, exist_ok=True)
        shutil.copyfile(Path(scratch) / "model.safetensors", folder / "model.safetensors")
        if keep_index:
            shutil.copyfile(Path(scratch) / "model.safetensors.index.json", folder / "model.safetensors.index.json")
        written = json.loads((Path(scratch) / "config.json").read_text())
    written["vision_config"] = json.loads((Path(source) / "config.json").read_text())["vision_config"]
    for key in ("quantization", "quantization_config"):
        for end, override in overrides.items():
            if override is False:  # mlx-vlm writes nothing for these; files made by other tools say it
                written[key].update({path: False for path in paths if path.endswith(end)})
    (folder / "config.json").write_text(json.dumps(written, indent=1, sort_keys=True) + "\n")


def dequantized(model):
    """The text model's weights as torch tensors in f32, under transformers' names and with its packing of experts."""
    plain = {}
    for path, module in model.language_model.named_modules():
        for name, value in module.items():
            if not isinstance(value, mx.array) or name in ("scales", "biases") or name.startswith("_"):
                continue
            if name == "weight" and "scales" in module:
                value = mx.dequantize(value, module.scales, module.get("biases"), group_size=module.group_size,
                                      bits=module.bits, mode=module.mode, dtype=mx.float32)
            plain[f"{path}.{name}"] = torch.from_numpy(np.array(value.astype(mx.float32)))
    for end in [name for name in plain if name.endswith("switch_glu.gate_proj.weight")]:
        experts = end.removesuffix("switch_glu.gate_proj.weight")
        gate, up, down = (plain.pop(f"{experts}switch_glu.{part}_proj.weight") for part in ("gate", "up", "down"))
        plain[f"{experts}gate_up_proj"], plain[f"{experts}down_proj"] = torch.cat([gate, up], dim=1), down
    return {"model.language_model." + name.removeprefix("model."): value for name, value in plain.items()}


@contextlib.contextmanager
def recording(sites):
    """While open, the Gemma 4 classes of mlx-vlm put their values into `sites`."""
    attention, layer = language.Attention.__call__, language.DecoderLayer.__call__
    router, project = language.Router.__call__, language.Gemma4TextModel.project_per_layer_inputs
    embedding = nn.QuantizedEmbedding.__call__
    current = []

    def embedding_in_f32(self, ids):
        # mlx unpacks mxfp4, mxfp8 and nvfp4 rows to bf16, which holds every such value exactly.
        return embedding(self, ids).astype(mx.float32)

    def attention_and_keep(self, *args, **kwargs):
        output = attention(self, *args, **kwargs)
        sites[f"layer.{self.layer_idx}.attention"] = output[0]
        return output

    def layer_and_keep(self, *args, **kwargs):
        current[:] = [self.layer_idx]
        output = layer(self, *args, **kwargs)
        sites[f"layer.{self.layer_idx}.hidden"] = output[0]
        return output

    def router_and_keep(self, x):
        ids, weights = router(self, x)
        # mlx-vlm leaves the chosen experts unsorted; transformers orders them by probability, and so do the goldens.
        order = mx.argsort(-weights / self.per_expert_scale[ids], axis=-1)
        sites[f"layer.{current[0]}.router_weights"] = mx.take_along_axis(weights, order, axis=-1)
        sites[f"layer.{current[0]}.router_ids"] = mx.take_along_axis(ids, order, axis=-1)
        return ids, weights

    def project_and_keep(self, *args):
        combined = project(self, *args)
        sites["per_layer_inputs"] = combined.flatten(-2)
        return combined

    with mock.patch.object(language.Attention, "__call__", attention_and_keep), \
            mock.patch.object(language.DecoderLayer, "__call__", layer_and_keep), \
            mock.patch.object(language.Router, "__call__", router_and_keep), \
            mock.patch.object(language.Gemma4TextModel, "project_per_layer_inputs", project_and_keep), \
            mock.patch.object(nn.QuantizedEmbedding, "__call__", embedding_in_f32):
        yield


def record(model, ids):
    """All sites of one prompt, as `torch_oracle.record` gives them."""
    sites, ids = {}, mx.array(ids.numpy())[None]
    text = model.language_model.model
    with recording(sites):
        sites["final_norm"] = text(ids)
        sites["embed"] = text.embed_tokens(ids) * text.embed_scale
    sites["logits"] = model.language_model.logits_from_hidden(sites["final_norm"])
    mx.eval(sites)
    for name, value in sites.items():
        wanted = mx.uint32 if name.endswith("router_ids") else mx.float32
        assert value.dtype == wanted, f"{name} is {value.dtype}, not {wanted}"
    return {name: np.array(value.squeeze(0)).astype(np.int64 if name.endswith("ids") else np.float32)
            for name, value in sites.items()}
