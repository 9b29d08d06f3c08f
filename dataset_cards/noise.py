import hashlib

import numpy as np

# config: grammar hash, sample seed, number of symbols, law and scale of the noise
NOISE = {{ noise_configs }}


def features(config, split, example_id, input_ids):
    """(steps, symbols) float32: one-hot symbols, zero at blanks, plus the noise that every evaluation of this example sees."""
    grammar, sample_seed, symbols, law, scale = NOISE[config]
    input_ids = np.asarray(input_ids, dtype=np.int64)
    out = np.zeros((len(input_ids), symbols + 1), dtype=np.float32)
    out[np.arange(len(input_ids)), input_ids] = 1  # the column past the symbols takes the blanks
    out = out[:, :symbols]
    name = f"selectivbench-1/noise/{grammar}/{sample_seed}/{split}/{example_id}"
    key = int.from_bytes(hashlib.sha256(name.encode()).digest()[:16], "little")
    count = out.size + out.size % 2
    words = np.random.Philox(key=key).random_raw(count // 2).astype("<u8").view("<u4")  # 32-bit words, the low half first
    if law == "uniform":  # on [0, scale)
        noise = (words >> np.uint32(8)).astype(np.float32) * np.float32(scale / 2**24)
    else:  # normal with standard deviation `scale`, by Box-Muller
        a, b = words.astype(np.float64).reshape(2, -1)
        radius, angle = np.sqrt(-2 * np.log((a + 0.5) / 2**32)) * scale, 2 * np.pi * b / 2**32
        noise = np.concatenate([radius * np.cos(angle), radius * np.sin(angle)]).astype(np.float32)
    return out + noise[: out.size].reshape(out.shape)
