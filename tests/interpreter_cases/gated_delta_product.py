"""Gated DeltaProduct."""

SMALL = {"hidden_size": 32, "num_heads": 2, "head_dim": 8}

CASES = {
    "gated_delta_product_short": ("GatedDeltaProduct", SMALL, 40, True),
    "gated_delta_product_long": ("GatedDeltaProduct", SMALL, 100, True),
    "gated_delta_product_three": (
        "GatedDeltaProduct",
        {**SMALL, "num_householder": 3, "num_v_heads": 4, "allow_neg_eigval": False, "use_short_conv": False},
        70,
        True,
    ),
    "gated_delta_product_ungated": (
        "GatedDeltaProduct",
        {**SMALL, "use_forget_gate": False, "use_output_gate": False},
        70,
        True,
    ),
    "gated_delta_product_eval": ("GatedDeltaProduct", SMALL, 40, False),  # the recurrent kernel
}
