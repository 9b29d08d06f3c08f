"""Kimi Delta Attention."""

SMALL = {"hidden_size": 32, "num_heads": 2, "head_dim": 16}

CASES = {
    "kda_short": ("KimiDeltaAttention", SMALL, 40, True),
    "kda_long": ("KimiDeltaAttention", SMALL, 100, True),
    "kda_negative": (
        "KimiDeltaAttention",
        {**SMALL, "num_v_heads": 4, "head_dim": 8, "expand_v": 2, "allow_neg_eigval": True, "conv_bias": True},
        70,
        True,
    ),
    # not safe_gate: it only chooses kernels with a product of bfloat16 parts, which the interpreter has not
    "kda_bounded": ("KimiDeltaAttention", {**SMALL, "use_short_conv": False, "lower_bound": -5.0}, 70, True),
    "kda_eval": ("KimiDeltaAttention", SMALL, 40, False),
    "kda_eval_bounded": ("KimiDeltaAttention", {**SMALL, "lower_bound": -2.0}, 40, False),
}
