"""Mamba-2: fla's scan in plain torch between fla's own gated norm and activation."""

SMALL = {"hidden_size": 32, "head_dim": 16, "state_size": 16, "chunk_size": 32}
CASES = {
    "mamba2_short": ("Mamba2", SMALL, 40, True),
    "mamba2_long": ("Mamba2", {**SMALL, "norm_before_gate": True, "use_bias": True}, 100, True),
}
