"""Gated DeltaNet."""

CASES = {
    "gated_delta_net_short": ("GatedDeltaNet", {"hidden_size": 32, "num_heads": 2, "head_dim": 12}, 40, True),
    "gated_delta_net_long": ("GatedDeltaNet", {"hidden_size": 32, "num_heads": 2, "head_dim": 12}, 100, True),
    "gated_delta_net_negative": (
        "GatedDeltaNet",
        {
            "hidden_size": 32,
            "num_heads": 2,
            "num_v_heads": 4,
            "head_dim": 8,
            "allow_neg_eigval": True,
            "conv_bias": True,
        },
        70,
        True,
    ),
    "gated_delta_net_ungated": (
        "GatedDeltaNet",
        {"hidden_size": 32, "num_heads": 2, "head_dim": 12, "use_gate": False},
        70,
        True,
    ),
    "gated_delta_net_eval": ("GatedDeltaNet", {"hidden_size": 32, "num_heads": 2, "head_dim": 12}, 40, False),
}
