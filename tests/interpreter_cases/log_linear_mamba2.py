"""Log-linear Mamba-2: one path in training, another in evaluation. The kernel wants states of 64 and head sizes that are powers of two."""

SMALL = {"hidden_size": 32, "num_heads": 2, "head_dim": 16, "expand": 1, "state_size": 64}
CASES = {
    "log_linear_mamba2_short": ("LogLinearMamba2", SMALL, 40, True),
    "log_linear_mamba2_long": ("LogLinearMamba2", {**SMALL, "D_has_hdim": True}, 160, True),
    "log_linear_mamba2_eval": ("LogLinearMamba2", {**SMALL, "rmsnorm": False}, 100, False),
}
