"""Comba."""

SMALL = {"hidden_size": 32, "num_heads": 2, "head_dim": 12}

CASES = {
    "comba_short": ("Comba", SMALL, 40, True),
    "comba_long": ("Comba", SMALL, 100, True),
    "comba_plain": (
        "Comba",
        {
            **SMALL,
            "head_dim": 8,
            "num_v_heads": 4,
            "use_output_gate": False,
            "use_inner_decay": False,
            "conv_bias": True,
        },
        70,
        True,
    ),
    "comba_eval": ("Comba", SMALL, 40, False),  # the recurrent kernel
}
