"""Gated slot attention."""

CASES = {
    "gsa_short": ("GatedSlotAttention", {"hidden_size": 32, "num_heads": 2}, 40, True),
    "gsa_long": ("GatedSlotAttention", {"hidden_size": 32, "num_heads": 2, "num_slots": 8}, 100, True),
    "gsa_groups": (
        "GatedSlotAttention",
        {
            "hidden_size": 32,
            "num_heads": 2,
            "num_kv_heads": 1,
            "use_short_conv": True,
            "conv_bias": True,
            "feature_map": "relu",
        },
        70,
        True,
    ),
}
