"""Mamba as a layer of ours: fla's parameters, our scan."""

import fla.layers.mamba

from ...kernels.mamba import mamba_forward
from .mamba2 import StateSpace, quiet, rows_from, turn_state_space


class Mamba(StateSpace, fla.layers.mamba.Mamba):
    """fla's Mamba with the selective scan of this package on the CPU, and of mamba_ssm on CUDA where that is installed.

    fla itself has mamba_ssm's kernels or a loop in plain torch, whose backward is quadratic in the length. Parameters, their names and
    their initialisation are fla's; the knobs take parameters out, or set others.
    """

    scan = staticmethod(mamba_forward)

    def __init__(self, decay="learned", initial_decay=None, use_short_conv=True, use_output_gate=True, **kwargs):
        with quiet(fla.layers.mamba):
            super().__init__(**kwargs)
        turn_state_space(self, self.dt_proj.bias[:, None], decay, initial_decay, use_short_conv)
        if not use_output_gate:
            self.in_proj = rows_from(self.in_proj, 0, self.intermediate_size)
