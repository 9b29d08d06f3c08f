"""Linear attention."""

SIZE = {"hidden_size": 32, "num_heads": 2}
CASES = {
    "linear_attention_short": ("LinearAttention", SIZE, 40, True),
    "linear_attention_long": ("LinearAttention", {**SIZE, "expand_k": 0.5, "feature_map": "hedgehog"}, 100, True),
    "linear_attention_normalised": (
        "LinearAttention",
        {**SIZE, "feature_map": "elu", "do_feature_map_norm": True, "norm_q": True, "norm_k": True, "num_kv_heads": 1},
        70,
        True,
    ),
    "linear_attention_eval": (
        "LinearAttention",
        {**SIZE, "feature_map": "elu", "do_feature_map_norm": True},
        40,
        False,
    ),
}
