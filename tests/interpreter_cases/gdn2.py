"""Gated DeltaNet-2."""

SMALL = {"hidden_size": 32, "num_heads": 2, "head_dim": 16}

CASES = {
    "gdn2_short": ("GatedDeltaNet2", SMALL, 40, True),
    "gdn2_long": ("GatedDeltaNet2", SMALL, 100, True),
    "gdn2_negative": (
        "GatedDeltaNet2",
        {**SMALL, "num_v_heads": 4, "head_dim": 8, "expand_v": 2, "allow_neg_eigval": True, "use_short_conv": False},
        70,
        True,
        # the gradient of A_log is a sum that nearly cancels: fla's is 2.4e-5 from float64, ours 1.5e-5
        {"gradient": 1e-4},
    ),
    "gdn2_eval": ("GatedDeltaNet2", SMALL, 40, False),
}
