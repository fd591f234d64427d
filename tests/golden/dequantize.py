"""Writes dequantize.txt: random blocks of every block format, and the floats that the Python package
gguf (pip install gguf==0.19.0) makes of them. Each line: type, elements, blocks, floats (hexadecimal
bytes, little-endian)."""
import gguf
import numpy as np

# byte offsets of the half floats, whose exponents are kept small
HALVES = {"Q4_0": [0], "Q4_1": [0, 2], "Q5_0": [0], "Q5_1": [0, 2], "Q8_0": [0], "Q2_K": [80, 82], "Q3_K": [108],
          "Q4_K": [0, 2], "Q5_K": [0, 2], "Q6_K": [208], "IQ4_NL": [0], "IQ4_XS": [0], "MXFP4": []}

rng = np.random.default_rng(20261121)
print(f"# {len(HALVES)} formats by dequantize.py with gguf 0.19.0")
for name, halves in HALVES.items():
    kind = gguf.GGMLQuantizationType[name]
    block, size = gguf.GGML_QUANT_SIZES[kind]
    data = rng.integers(0, 256, (256 // block, size), dtype=np.uint8)
    for at in halves:
        data[:, at + 1] &= 0xBF
    if name == "MXFP4":
        data[:, 0] = [0, 1, 2, 3, 110, 127, 128, 150]
    floats = gguf.quants.dequantize(data, kind).astype("<f4")
    print(name, floats.size, data.tobytes().hex(), floats.tobytes().hex())
