"""Makes every folder under data/: a tiny checkpoint and what the oracles compute from it. See README.md.

    python make.py            everything (about a minute)
    python make.py dense-     only the folders whose name starts so

Each line that it prints is a check; it stops at the first that fails.
"""
import shutil
import sys
import tempfile
from pathlib import Path

import mlx_oracle  # first: it fixes the number of threads before numpy starts its own
import numpy as np
import torch
import torch_oracle
from safetensors.numpy import save_file

import kinds
import weights

DATA = Path(__file__).parent / "data"
PROMPT, LONG_PROMPT = 60, 200
SITE_ROWS = 8                # sites: the last rows of the prompt
QUANTIZED_LOGIT_ROWS = 24    # logits of quantized checkpoints: the last rows; of originals all
LONG_LOGIT_ROWS = 4
ORACLES_AGREE = 1e-3         # between transformers and mlx-vlm, both f32, values of size 1 to 20
WINDOW_SHOWS = 0.1           # a window off by one moves some logit by more than this


def affine(bits, group_size):
    return dict(group_size=group_size, bits=bits, mode="affine")


MXFP4 = dict(group_size=32, bits=4, mode="mxfp4")
MXFP8 = dict(group_size=32, bits=8, mode="mxfp8")
NVFP4 = dict(group_size=16, bits=4, mode="nvfp4")

# Every affine format (2, 3, 4, 5, 6, 8 bits by groups of 32, 64, 128), each other mode, an entry that leaves its module
# unquantized and one that names its group size alone, over the modules of one model. 4 bits by 64 is the default there.
E_MIXED = {
    "embed_tokens": affine(6, 128),
    "embed_tokens_per_layer": affine(5, 32),
    "per_layer_model_projection": affine(8, 64),
    "layers.0.self_attn.q_proj": affine(2, 32),
    "layers.0.self_attn.k_proj": affine(3, 32),
    "layers.0.self_attn.v_proj": affine(8, 32),
    "layers.0.self_attn.o_proj": dict(group_size=32),
    "layers.0.mlp.gate_proj": affine(2, 64),
    "layers.0.mlp.up_proj": affine(6, 32),
    "layers.0.mlp.down_proj": affine(3, 64),
    "layers.1.self_attn.q_proj": affine(2, 128),
    "layers.1.self_attn.k_proj": affine(5, 64),
    "layers.1.self_attn.v_proj": affine(6, 64),
    "layers.1.self_attn.o_proj": affine(3, 128),
    "layers.1.mlp.up_proj": affine(4, 128),
    "layers.1.mlp.down_proj": NVFP4,
    "layers.2.self_attn.q_proj": False,
    "layers.2.mlp.down_proj": affine(5, 128),
    "layers.3.self_attn.o_proj": affine(8, 128),
    "layers.3.mlp.down_proj": MXFP4,
    "layers.3.per_layer_projection": MXFP8,
}

# Experts in formats of their own; the embedding takes the default, 3 bits by 64; one router stays unquantized.
MOE_MIXED = {
    "layers.0.experts.switch_glu.gate_proj": affine(5, 32),
    "layers.0.experts.switch_glu.up_proj": affine(2, 128),
    "layers.0.experts.switch_glu.down_proj": affine(6, 64),
    "layers.1.experts.switch_glu.gate_proj": affine(3, 128),
    "layers.1.experts.switch_glu.up_proj": NVFP4,
    "layers.1.experts.switch_glu.down_proj": affine(8, 32),
    "layers.1.router.proj": False,
}

# name: (kind, the default format, overrides)
QUANTIZED = {
    "e-affine4g64": ("e", affine(4, 64), {}),
    "unified-affine4g64": ("unified", affine(4, 64), {}),
    "moe-affine4g64": ("moe", affine(4, 64), {}),
    "dense-affine4g64": ("dense", affine(4, 64), {}),
    "e-mixed": ("e", affine(4, 64), E_MIXED),
    "moe-mixed": ("moe", affine(3, 64), MOE_MIXED),
    "moe-mxfp4": ("moe", MXFP4, {}),
    "dense-mxfp8": ("dense", MXFP8, {}),
    "unified-nvfp4": ("unified", NVFP4, {}),
}
WITH_INDEX = "dense-affine4g64"  # keeps the index that mlx-vlm writes beside a single file
WITH_TOWERS = "e-affine4g64"     # carries vision and audio in mlx-vlm's names and axis order
SHARDED = {"dense": "300KB"}     # the original that is split, and its largest shard
WITH_LONG = ("e", "dense")


def compare(label, got, wanted):
    """Prints and checks the largest difference between two recordings."""
    assert set(got) == set(wanted), f"{label}: sites differ: {sorted(set(got) ^ set(wanted))}"
    worst = max((float(np.abs(got[name].astype(np.float64) - wanted[name]).max()), name) for name in got)
    print(f"{label:28} transformers and mlx-vlm differ by at most {worst[0]:.1e} (at {worst[1]})")
    assert worst[0] < ORACLES_AGREE, label


def check_window(label, folder, ids, logits):
    """A window one key longer or shorter, or none, must show in the golden's last rows."""
    shown = []
    for window in (kinds.WINDOW - 1, kinds.WINDOW + 1, len(ids)):
        other = torch_oracle.record(torch_oracle.load(folder, sliding_window=window), ids)["logits"]
        difference = np.abs(other - logits)[-LONG_LOGIT_ROWS:]
        assert difference.max(axis=1).min() > WINDOW_SHOWS, f"{label}: window {window} does not show in every row"
        shown.append(f"{window}: {difference.max():.2f}")
    print(f"{label:28} logits move with other windows ({', '.join(shown)})")


def check_logits(label, sites):
    before = 30.0 * np.arctanh(sites["logits"].astype(np.float64) / 30.0)
    moved = np.abs(before - sites["logits"]).max()
    print(f"{label:28} logits before the soft cap deviate by {before.std():.2f}; the cap moves one by {moved:.2f}")
    assert 1.0 < before.std() < 4.0 and moved > 0.1, label


def save(path, ids, sites, logit_rows):
    """The golden file: `sites` cut to their last rows, `logits` to theirs."""
    length = len(ids)
    tensors = {name: value[-SITE_ROWS:] for name, value in sites.items()}
    tensors["logits"] = sites["logits"][-logit_rows:]
    tensors["input_ids"] = ids.numpy()
    tensors["rows"] = np.arange(length - SITE_ROWS, length)
    tensors["logits_rows"] = np.arange(length - logit_rows, length)
    save_file({name: np.ascontiguousarray(value) for name, value in tensors.items()}, path)
    path.chmod(0o644)  # safetensors keeps its files to their owner


def make_original(kind, folder):
    weights.write_original(folder, kinds.ORIGINAL[kind], folder.name, SHARDED.get(kind, "1GB"))
    model, other = torch_oracle.load(folder), mlx_oracle.load(folder)
    for length in (PROMPT, LONG_PROMPT):
        ids = weights.prompt(folder.name, length, kinds.FIRST_MEDIA_ID)
        sites = torch_oracle.record(model, ids)
        label = f"{folder.name}, {length} tokens"
        compare(label, mlx_oracle.record(other, ids), sites)
        if length == PROMPT:
            check_logits(folder.name, sites)
            save(folder / "goldens.safetensors", ids, sites, PROMPT)
        elif kind in WITH_LONG:
            check_window(label, folder, ids, sites["logits"])
            save(folder / "goldens-long.safetensors", ids, {"logits": sites["logits"]}, LONG_LOGIT_ROWS)


def make_quantized(name, folder):
    kind, default, overrides = QUANTIZED[name]
    config = kinds.quantized(kind, towers=name == WITH_TOWERS)
    with tempfile.TemporaryDirectory() as scratch:
        source = Path(scratch)
        weights.write_original(source, config, f"{kind}-quantized")
        mlx_oracle.convert(source, folder, **default, overrides=overrides, keep_index=name == WITH_INDEX)
        model = mlx_oracle.load(folder)
        ids = weights.prompt(name, PROMPT, kinds.FIRST_MEDIA_ID)
        sites = mlx_oracle.record(model, ids)
        # The same through transformers, on what mlx unpacks: an independent look at names, axes and the graph.
        unpacked = torch_oracle.load(source)
        missing, unexpected = unpacked.load_state_dict(mlx_oracle.dequantized(model), strict=False)
        media = ("model.vision_tower", "model.audio_tower", "model.embed_vision", "model.embed_audio")
        assert not unexpected and all(key == "lm_head.weight" or key.startswith(media) for key in missing), (unexpected, missing)
        compare(name, sites, torch_oracle.record(unpacked, ids))
        check_logits(name, sites)
        save(folder / "goldens.safetensors", ids, sites, QUANTIZED_LOGIT_ROWS)


def main(prefix=""):
    names = [f"{kind}-original" for kind in kinds.ORIGINAL] + list(QUANTIZED)
    chosen = [name for name in names if name.startswith(prefix)]
    assert chosen, f"no folder's name starts with {prefix!r}; there are {', '.join(names)}"
    for name in chosen:
        folder = DATA / name
        shutil.rmtree(folder, ignore_errors=True)
        folder.mkdir(parents=True)
        if name.endswith("-original"):
            make_original(name.removesuffix("-original"), folder)
        else:
            make_quantized(name, folder)
    total = sum(file.stat().st_size for file in DATA.rglob("*") if file.is_file())
    print(f"data/ holds {total / 1e6:.2f} MB")


if __name__ == "__main__":
    main(*sys.argv[1:])
