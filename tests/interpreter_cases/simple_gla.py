"""Simple gated linear attention."""

LAYER = "fla.layers.simple_gla:SimpleGatedLinearAttention"
SIZE = {"hidden_size": 32, "num_heads": 2}
CASES = {
    "simple_gla_short": (LAYER, SIZE, 40, True),
    "simple_gla_long": (LAYER, SIZE, 100, True),
    "simple_gla_plain": (LAYER, {**SIZE, "use_short_conv": False, "fuse_norm": False, "num_kv_heads": 1}, 70, True),
    "simple_gla_eval": (LAYER, SIZE, 40, False),
}
