"""Mamba: fla's loop in torch (its only kernel off CUDA is the activation)."""

SMALL = {"hidden_size": 32, "intermediate_size": 64, "state_size": 8}
CASES = {
    "mamba_short": ("Mamba", SMALL, 40, True),
    "mamba_long": ("Mamba", SMALL, 100, True),
    "mamba_biased": ("Mamba", {**SMALL, "use_bias": True, "use_conv_bias": False, "conv_kernel": 3}, 70, True),
}
