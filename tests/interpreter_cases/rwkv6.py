"""RWKV-6."""

LOW_RANK = {"proj_low_rank_dim": 8, "gate_low_rank_dim": 8}  # the defaults are wider than these layers
CASES = {
    "rwkv6_short": ("RWKV6Attention", {"hidden_size": 32, "num_heads": 2}, 40, True),
    "rwkv6_long": ("RWKV6Attention", {"hidden_size": 32, "num_heads": 2, **LOW_RANK}, 100, True),
    "rwkv6_gate": (
        "RWKV6Attention",
        {"hidden_size": 32, "num_heads": 2, "expand_k": 1.0, "gate_fn": "sigmoid", **LOW_RANK},
        70,
        True,
    ),
}
