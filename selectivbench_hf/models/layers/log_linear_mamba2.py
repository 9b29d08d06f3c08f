"""Log-linear Mamba-2 as a layer of ours: fla's parameters, our pass."""

import fla.layers.log_linear_mamba2

from ...kernels.log_linear_mamba2 import log_linear_mamba2_forward
from ...kernels.mamba2 import dt_at_zero
from .mamba2 import quiet, rows_from, turn_state_space


class LogLinearMamba2(fla.layers.log_linear_mamba2.LogLinearMamba2):
    """fla's log-linear Mamba-2 on every device, and several steps at a time after others. Parameters, their names and their
    initialisation are fla's; the knobs take parameters out, or set others."""

    def __init__(self, decay="learned", initial_decay=None, use_short_conv=True, use_output_gate=True, **kwargs):
        with quiet(fla.layers.log_linear_mamba2):
            super().__init__(**kwargs)
        turn_state_space(self, dt_at_zero(self) + self.dt_bias, decay, initial_decay, use_short_conv)
        if not use_output_gate:
            rest = self.in_proj.out_features - self.intermediate_size
            self.in_proj = rows_from(self.in_proj, self.intermediate_size, rest)

    forward = log_linear_mamba2_forward
