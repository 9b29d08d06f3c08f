"""Forgetting attention."""

CASES = {
    "fox_short": ("ForgettingAttention", {"hidden_size": 32, "num_heads": 2}, 40, True),
    "fox_long": ("ForgettingAttention", {"hidden_size": 32, "num_heads": 2}, 140, True),
    "fox_grouped": (
        "ForgettingAttention",
        {
            "hidden_size": 32,
            "num_heads": 4,
            "num_kv_heads": 2,
            "qkv_bias": True,
            "qk_norm": True,
            "use_output_gate": True,
        },
        100,
        True,
    ),
}
