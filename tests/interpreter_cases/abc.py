"""Attention with bounded-memory control."""

CASES = {
    "abc_long": ("ABCAttention", {"hidden_size": 32, "num_heads": 2}, 100, True),
    "abc_plain": (
        "ABCAttention",
        {
            "hidden_size": 32,
            "num_heads": 2,
            "num_slots": 16,
            "use_rope": False,
            "use_output_gate": False,
            "use_short_conv": True,
            "conv_bias": True,
        },
        40,
        True,
    ),
    "abc_ungated": (
        "ABCAttention",
        {"hidden_size": 32, "num_heads": 2, "use_norm": False, "use_input_gate": True},
        70,
        True,
    ),
}
