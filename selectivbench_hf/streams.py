"""The streams of randomness: one Philox key for each thing that is drawn, so that no two draws can share or shift each other's bits.

A key is the first 128 bits of SHA-256 over the generator version and the parts that name the stream. Everything that decides a byte of data
is made from raw Philox words by integer arithmetic, so neither a NumPy release nor another processor's rounding can change it.
"""

import hashlib
import math

import numpy as np

GENERATOR_VERSION = "selectivbench-1"


def stream_key(purpose: str, *parts: object) -> int:
    """The 128-bit Philox key of a stream: SHA-256 of the generator version, the purpose and the parts, joined by '/'."""
    name = "/".join([GENERATOR_VERSION, purpose, *map(str, parts)])
    return int.from_bytes(hashlib.sha256(name.encode()).digest()[:16], "little")


def stream(purpose: str, *parts: object) -> np.random.Philox:
    """The bit generator of a stream; draw from it with `random_raw` only."""
    return np.random.Philox(key=stream_key(purpose, *parts))


def raw32(source: np.random.Philox, count: int) -> np.ndarray:
    """`count` raw 32-bit words as uint32: the low half of each 64-bit word first, whatever the byte order of the machine."""
    return source.random_raw((count + 1) // 2).astype("<u8", copy=False).view("<u4")[:count]


def threshold32(probability: float) -> int:
    """The integer t for which a 32-bit word is below t with `probability` (to within 2^-33)."""
    return round(probability * 2**32)


def normals(source: np.random.Philox, count: int, scale: float = 1.0) -> np.ndarray:
    """`count` normal float64 of standard deviation `scale` from raw words, by Box-Muller; the first half of them from cosines."""
    words = raw32(source, count + count % 2).astype(np.float64).reshape(2, -1)
    radius = np.sqrt(-2 * np.log((words[0] + 0.5) / 2**32)) * scale
    angle = 2 * math.pi * words[1] / 2**32
    return np.concatenate([radius * np.cos(angle), radius * np.sin(angle)])[:count]
