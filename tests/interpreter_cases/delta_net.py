"""DeltaNet."""

SMALL = {"hidden_size": 32, "num_heads": 2}

CASES = {
    "delta_net_short": ("DeltaNet", SMALL, 40, True),
    "delta_net_long": ("DeltaNet", SMALL, 100, True),
    "delta_net_negative": (
        "DeltaNet",
        {**SMALL, "allow_neg_eigval": True, "use_gate": True, "conv_bias": True},
        70,
        True,
    ),
    "delta_net_unconvolved": (
        "DeltaNet",
        {
            **SMALL,
            "use_short_conv": False,
            "qk_activation": "elu",
            "qk_norm": "sum",
            "use_beta": False,
            "expand_v": 0.5,
        },
        70,
        True,
    ),
}
