"""RWKV-6 as a layer of ours: fla's parameters and forward pass, and room for the knobs. Axes: B batch, T time, D channels."""

import math

import torch
from fla.layers.rwkv6 import RWKV6Attention
from torch import nn

from ..gates import KEEPS_ALL, ConstantGate


class _ConstantDecay(ConstantGate):
    """In the place of w_proj: log(-log decay) without its arguments for the mixing with the step before."""

    def forward(self, x, *mixing):
        return super().forward(x)


class _NoGate(nn.Module):
    """In the place of g_proj, with `_one` in that of the gate's function."""

    def forward(self, x, *mixing):
        """None."""


def _one(gate):
    return 1.0


class RWKV6(RWKV6Attention):
    """fla's RWKV-6. The bonus and the offsets of the token shift are vectors a head or a kind, and take no weight decay."""

    def __init__(self, use_output_gate=True, decay="learned", initial_decay=None, **kwargs):
        super().__init__(**kwargs)
        self.bonus._no_weight_decay = self.x_bias._no_weight_decay = True
        bias = self.w_proj.linear.lora[-1].bias  # the decay is exp(-exp(w)), and w is this for an input of zero
        if initial_decay is not None:
            nn.init.constant_(bias, math.log(-math.log(initial_decay)))
        if decay == "fixed":
            self.w_proj = _ConstantDecay(bias, trained=True)
        elif decay == "none":
            self.w_proj = _ConstantDecay(torch.full_like(bias, -KEEPS_ALL), trained=False)
        if not use_output_gate:
            self.g_proj, self.gate_fn = _NoGate(), _one
