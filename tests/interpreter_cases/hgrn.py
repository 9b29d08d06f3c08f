"""HGRN."""

CASES = {
    "hgrn_short": ("HGRNAttention", {"hidden_size": 32}, 40, True),
    "hgrn_long": ("HGRNAttention", {"hidden_size": 32}, 140, True),
    "hgrn_conv": (
        "HGRNAttention",
        {"hidden_size": 32, "expand_ratio": 2, "use_short_conv": True, "conv_bias": True},
        70,
        True,
    ),
    "hgrn_eval": ("HGRNAttention", {"hidden_size": 32}, 40, False),  # the recurrent form
}
