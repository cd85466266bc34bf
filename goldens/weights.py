"""Random weights with a seed of their own for each tensor, and the original-layout folder that holds them.

No factor is left at one and no product at zero, so an engine that forgets a norm's weight, `layer_scalar`,
`router.scale` or `per_expert_scale` gets visibly other numbers.
"""
import json
import math
import shutil
import tempfile
import zlib
from pathlib import Path

import torch
import transformers

FINAL_NORM_SCALE = 3.0  # logits then spread by about 3, and the largest feel the soft cap
SCORE_DEVIATION = 1.7   # of q.k with the score scale 1.0: neither flat nor one-hot


def generator(*key):
    return torch.Generator().manual_seed(zlib.crc32("/".join(map(str, key)).encode()))


def draw(name, shape, random):
    """One tensor, f32, by the role that its name tells."""
    def normal(deviation):
        return torch.randn(shape, generator=random) * deviation

    def uniform(low, high):
        return torch.rand(shape, generator=random) * (high - low) + low

    leaf = name.rsplit(".", 1)[-1]
    if leaf in ("input_min", "output_min"):
        return uniform(-3.0, -2.0)
    if leaf in ("input_max", "output_max"):
        return uniform(2.0, 3.0)
    if leaf == "layer_scalar":
        return uniform(0.7, 1.1)
    if leaf in ("scale", "per_expert_scale"):
        return uniform(0.5, 1.5)
    if leaf == "per_dim_scale":
        return uniform(-0.5, 0.5)
    if leaf in ("bias", "position_embedding_table"):
        return normal(0.1)
    if name.endswith(("q_norm.weight", "k_norm.weight")):
        return uniform(0.6, 1.4) * math.sqrt(SCORE_DEVIATION) * shape[-1] ** -0.25
    if name.endswith("language_model.norm.weight"):
        return uniform(0.6, 1.4) * FINAL_NORM_SCALE
    if len(shape) == 1:
        return uniform(0.6, 1.4)
    if "embed_tokens_per_layer" in name:
        return normal(1.0)
    if "embed_tokens" in name:
        return normal(shape[-1] ** -0.5)
    if name.endswith("router.proj.weight"):
        return normal(1.5)  # its input is already divided by sqrt(hidden)
    fan_in = math.prod(shape[1:]) if "conv" in name else shape[-1]
    return normal(fan_in ** -0.5)


def build(config, seed):
    """A transformers model of `config` in bf16 with weights drawn from `seed`."""
    config = {key: value for key, value in config.items() if key not in ("architectures", "dtype")}
    if config["model_type"] == "gemma4_unified":
        model = transformers.Gemma4UnifiedForConditionalGeneration(transformers.Gemma4UnifiedConfig(**config))
    else:
        model = transformers.Gemma4ForConditionalGeneration(transformers.Gemma4Config(**config))
    model.to(torch.bfloat16)
    per_layer = config["text_config"]["hidden_size_per_layer_input"]
    with torch.no_grad():
        for name, tensor in sorted(model.state_dict(keep_vars=True).items()):
            if name == "lm_head.weight":  # tied to the embedding
                continue
            values = draw(name, tuple(tensor.shape), generator(seed, name))
            if "embed_tokens_per_layer" in name:
                values *= per_layer ** -0.5  # it is multiplied by sqrt(per_layer) on use
            tensor.copy_(values)
    return model


def write_original(folder, config, seed, shard_size="1GB"):
    """Writes `config.json` and the weights as transformers names and splits them."""
    folder.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory() as scratch:
        build(config, seed).save_pretrained(scratch, max_shard_size=shard_size)
        for file in sorted(Path(scratch).glob("model*.safetensors*")):
            shutil.copyfile(file, folder / file.name)
    # Not transformers' own config.json: real repositories spell `global_head_dim`, as `kinds` does.
    (folder / "config.json").write_text(json.dumps(config, indent=1, sort_keys=True) + "\n")


def prompt(name, length, below):
    """`length` random ids: <bos>, then ids from 5 up to `below`."""
    ids = torch.randint(5, below, (length,), generator=generator("prompt", name, length))
    ids[0] = 2
    return ids
