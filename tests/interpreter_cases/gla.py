"""Gated linear attention."""

CASES = {
    "gla_short": ("GatedLinearAttention", {"hidden_size": 32, "num_heads": 2}, 40, True),
    "gla_long": ("GatedLinearAttention", {"hidden_size": 32, "num_heads": 2}, 100, True),
    "gla_conv": (
        "GatedLinearAttention",
        {"hidden_size": 32, "num_heads": 2, "use_short_conv": True, "conv_bias": True},
        70,
        True,
    ),
    "gla_ungated": ("GatedLinearAttention", {"hidden_size": 32, "num_heads": 2, "use_output_gate": False}, 70, True),
}
