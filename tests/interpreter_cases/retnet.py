"""Retention."""

SIZE = {"hidden_size": 32, "num_heads": 2}
CASES = {
    "retnet_short": ("MultiScaleRetention", SIZE, 40, True),
    "retnet_long": ("MultiScaleRetention", SIZE, 100, True),
    "retnet_conv": (
        "MultiScaleRetention",
        {**SIZE, "expand_v": 1.0, "use_short_conv": True, "conv_bias": True, "use_output_gate": False},
        70,
        True,
    ),
    "retnet_eval": ("MultiScaleRetention", {**SIZE, "expand_v": 1.0, "num_kv_heads": 1}, 40, False),
}
