"""Based and ReBased."""

CASES = {
    "based_short": ("BasedLinearAttention", {"hidden_size": 32, "num_heads": 2, "num_key_value_heads": 2}, 40, True),
    "based_long": (
        "BasedLinearAttention",
        {"hidden_size": 32, "num_heads": 2, "num_key_value_heads": 2, "feature_dim": 8},
        140,
        True,
    ),
    "rebased_short": (
        "ReBasedLinearAttention",
        {"hidden_size": 32, "num_heads": 2, "num_key_value_heads": 2},
        40,
        True,
    ),
    "rebased_long": (
        "ReBasedLinearAttention",
        {"hidden_size": 32, "num_heads": 2, "num_key_value_heads": 2, "feature_dim": 8},
        140,
        True,
    ),
}
