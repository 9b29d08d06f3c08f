"""RWKV-7's time mixing: the first layer, and a later one, which mixes its values with the first one's."""

SMALL = {"hidden_size": 32, "num_heads": 2, "head_dim": None, "num_hidden_layers": 3}

# fla inverts the triangular matrix of a chunk in float16: its own distance from float64 is 5e-5 in the output and 1e-4 in gradients,
# ours 3e-7 and 8e-6. The short form, taken in evaluation, needs no inverse.
HALF = {"output": 1e-4, "gradient": 3e-4}

CASES = {
    "rwkv7_short": ("RWKV7Attention", SMALL, 40, True, HALF),
    "rwkv7_long": ("RWKV7Attention", SMALL, 100, True, HALF),
    "rwkv7_later": ("rwkv7_helper:LaterLayer", {**SMALL, "layer_idx": 1, "fuse_norm": True}, 70, True, HALF),
    "rwkv7_eval": ("RWKV7Attention", SMALL, 40, False),
}
