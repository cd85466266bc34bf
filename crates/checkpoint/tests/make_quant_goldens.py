"""Makes data/quant.safetensors: what mlx on the CPU packs and unpacks, for tests/quant.rs.

Run it with a Python that has mlx and safetensors: python make_quant_goldens.py
"""

import pathlib

import mlx.core as mx
import numpy as np
from safetensors.numpy import save_file

ROWS, COLS = 3, 128
DTYPES = {"f32": mx.float32, "bf16": mx.bfloat16, "f16": mx.float16}


def source():
    """Ordinary values, and groups of 32 that are at some edge of the rules."""
    rng = np.random.default_rng(4)
    values = rng.standard_normal((ROWS, COLS)).astype(np.float32) * 0.02
    values[1, :32] = 0
    values[1, 32:64] = 0.4375
    values[1, 64:96] = -np.abs(values[1, 64:96]) - 0.01  # the maximum is the edge nearer zero
    values[1, 96:] = np.linspace(0.5, 2, 32)  # all positive
    values[2, :32] = np.arange(-16, 16) / 8  # ties of every format
    values[2, 32:64] *= np.exp2(rng.integers(-12, 12, 32))  # wide
    values[2, 64:96] *= 5e-5  # around the smallest step, and subnormal in float16
    values[2, 96:] *= 2000
    return values


def bits_of(array):
    """Bytes as the file has them, floats kept as their bits."""
    if array.dtype in (mx.bfloat16, mx.float16):
        return np.array(array.view(mx.uint16))
    return np.array(array)


def main():
    mx.set_default_device(mx.cpu)
    out = {}
    for dtype_name, dtype in DTYPES.items():
        # Scaled so that float16 holds all values as normal numbers or exactly.
        values = mx.array(source()).astype(dtype)
        out[f"source.{dtype_name}"] = np.array(values.astype(mx.float32))
        formats = [("affine", bits, group) for bits in (2, 3, 4, 5, 6, 8) for group in (32, 64, 128)]
        formats += [("mxfp4", 4, 32), ("mxfp8", 8, 32), ("nvfp4", 4, 16)]
        for mode, bits, group in formats:
            name = f"affine:{bits}:{group}" if mode == "affine" else mode
            weight, scales, *biases = mx.quantize(values, group, bits, mode=mode)
            key = f"{name}.{dtype_name}"
            out[f"{key}.weight"] = np.array(weight)
            out[f"{key}.scales"] = bits_of(scales)
            # In f32: scales and biases widened, which is exact.
            wide = [biases[0].astype(mx.float32)] if biases else []
            if biases:
                out[f"{key}.biases"] = bits_of(biases[0])
                scales = scales.astype(mx.float32)
            if dtype_name != "f16":
                unpacked = mx.dequantize(weight, scales, *wide, group_size=group, bits=bits, mode=mode, dtype=mx.float32)
                out[f"{key}.dequantized"] = np.array(unpacked)

    # Every code of the small floats.
    codes = mx.array(np.arange(256, dtype=np.uint8))
    one = mx.full((8, 1), 127, dtype=mx.uint8)
    out["e4m3"] = np.array(mx.dequantize(codes.view(mx.uint32).reshape(8, 8), one, mode="mxfp8", dtype=mx.float32)).reshape(-1)
    ones = mx.array(np.full((256, 4), 0x22222222, dtype=np.uint32))  # E2M1 code 2 is 1
    out["e8m0"] = np.array(mx.dequantize(ones, codes.reshape(256, 1), mode="mxfp4", dtype=mx.float32))[:, 0]
    nibbles = mx.array(np.array([[0x76543210, 0xFEDCBA98, 0, 0]], dtype=np.uint32))
    out["e2m1"] = np.array(mx.dequantize(nibbles, one[:1], mode="mxfp4", dtype=mx.float32))[0, :16]
    # To E4M3: each value, each midpoint, and the neighbours of both.
    finite = np.concatenate([out["e4m3"][:127], [480]]).astype(np.float32)
    midpoints = (finite[1:] + finite[:-1]) / 2
    around = np.concatenate([finite, midpoints])
    around = np.concatenate([around, np.nextafter(around, np.float32(np.inf)), np.nextafter(around, np.float32(0)), [1e4]])
    out["to_e4m3.values"] = around.astype(np.float32)
    out["to_e4m3.codes"] = np.array(mx.to_fp8(mx.array(out["to_e4m3.values"])))

    path = pathlib.Path(__file__).parent / "data" / "quant.safetensors"
    # Slices are written as they lie in memory: whole first.
    save_file({name: np.ascontiguousarray(array) for name, array in out.items()}, path)
    print(path, path.stat().st_size, "bytes")


if __name__ == "__main__":
    main()
