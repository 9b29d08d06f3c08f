"""HGRN2."""

CASES = {
    "hgrn2_short": ("HGRN2Attention", {"hidden_size": 32, "num_heads": 2, "expand_ratio": None}, 40, True),
    "hgrn2_long": ("HGRN2Attention", {"hidden_size": 32, "num_heads": 2, "expand_ratio": None}, 100, True),
    "hgrn2_conv": (
        "HGRN2Attention",
        {"hidden_size": 32, "num_heads": 2, "expand_ratio": None, "use_short_conv": True, "conv_bias": True},
        70,
        True,
    ),
}
