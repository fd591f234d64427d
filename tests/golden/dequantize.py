"""Writes dequantize.txt: random blocks of every block format, and the floats that the Python package
gguf (pip install gguf==0.19.0) makes of them. Each line: type, elements, blocks, floats (hexadecimal
bytes, little-endian).

With the argument `sums` it writes dequantize-sums.txt: the CRC-32 of the floats of 2^19 elements each, whose blocks are
the upper bytes of a linear congruential generator: enough of them to meet every point of every grid. The package knows Q1_0 by name only and Q2_0 not at all: their formulas are
written out here."""
import sys
import zlib

import gguf
import numpy as np

# byte offsets of the half floats, whose exponents are kept small
HALVES = {"Q4_0": [0], "Q4_1": [0, 2], "Q5_0": [0], "Q5_1": [0, 2], "Q8_0": [0], "Q2_K": [80, 82], "Q3_K": [108],
          "Q4_K": [0, 2], "Q5_K": [0, 2], "Q6_K": [208], "IQ4_NL": [0], "IQ4_XS": [0], "MXFP4": [],
          "NVFP4": [], "TQ1_0": [52], "TQ2_0": [64], "IQ2_XXS": [0], "IQ2_XS": [0], "IQ2_S": [0], "IQ3_XXS": [0],
          "IQ3_S": [0], "IQ1_S": [0], "IQ1_M": [54], "Q1_0": [0], "Q2_0": [0]}


def bits_of(data, bits):
    """The little-endian numbers of so many bits in the bytes after the half float of each block."""
    shifts = np.arange(0, 8, bits, dtype=np.uint8)
    return ((data[:, 2:, None] >> shifts) & ((1 << bits) - 1)).reshape(len(data), -1).astype(np.float32)


def half_of(data):
    return data[:, :2].copy().view(np.float16).astype(np.float32)


OURS = {"Q1_0": (128, 18, lambda data: half_of(data) * (2 * bits_of(data, 1) - 1)),
        "Q2_0": (64, 18, lambda data: half_of(data) * (bits_of(data, 2) - 1))}



def shape_of(name):
    """Elements and bytes of a block."""
    return OURS[name][:2] if name in OURS else gguf.GGML_QUANT_SIZES[gguf.GGMLQuantizationType[name]]


def floats_of(name, data):
    for at in HALVES[name]:
        data[:, at + 1] &= 0xBF
    if name in OURS:
        return OURS[name][2](data).astype("<f4")
    with np.errstate(over="ignore"):
        return gguf.quants.dequantize(data, gguf.GGMLQuantizationType[name]).astype("<f4")


def generated(n):
    state, data = 1, bytearray(n)
    for i in range(n):
        state = (state * 6364136223846793005 + 1442695040888963407) % 2**64
        data[i] = state >> 56
    return np.frombuffer(data, np.uint8)


def write_blocks():
    rng = np.random.default_rng(20261121)
    print(f"# {len(HALVES)} formats by dequantize.py with gguf 0.19.0")
    for name in HALVES:
        block, size = shape_of(name)
        data = rng.integers(0, 256, (256 // block, size), dtype=np.uint8)
        if name == "MXFP4":
            data[:, 0] = [0, 1, 2, 3, 110, 127, 128, 150]
        floats = floats_of(name, data)
        print(name, floats.size, data.tobytes().hex(), floats.tobytes().hex())


def write_sums():
    print(f"# {len(HALVES)} formats by dequantize.py sums with gguf 0.19.0: type, byte offsets of halves or -1, sum")
    for name, halves in HALVES.items():
        block, size = shape_of(name)
        floats = floats_of(name, generated(2**19 // block * size).reshape(-1, size))
        first, second = (halves + [-1, -1])[:2]
        print(f"{name} {first} {second} {zlib.crc32(floats.tobytes()):08x}")


write_sums() if sys.argv[1:] == ["sums"] else write_blocks()
