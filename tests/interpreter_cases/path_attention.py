"""PaTH attention."""

SMALL = {"hidden_size": 32, "num_heads": 2}
CASES = {
    "path_short": ("PaTHAttention", SMALL, 40, True),
    "path_long": ("PaTHAttention", SMALL, 140, True),
    "path_forgetting": (
        "PaTHAttention",
        {
            **SMALL,
            "num_kv_heads": 1,
            "use_forget_gate": True,
            "use_qk_norm": True,
            "use_low_rank_w": False,
            "conv_bias": True,
        },
        100,
        True,
    ),
    "path_no_conv": ("PaTHAttention", {**SMALL, "use_w_shortconv": False}, 70, True),
}
