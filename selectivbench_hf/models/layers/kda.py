"""Kimi Delta Attention with the knobs that fla's layer has not: output gate, decay, initial decay. Axes: B T D."""

import math

import fla.layers.kda
import torch
from fla.modules import RMSNorm
from torch import nn

from ...errors import InputError
from ..gates import KEEPS_ALL, ConstantGate


class KimiDeltaAttention(fla.layers.kda.KimiDeltaAttention):
    """fla's layer, whose log decay is -exp(A_log) softplus(f_proj(x) + dt_bias), or with a lower bound
    lower_bound sigmoid(exp(A_log) (f_proj(x) + dt_bias)).

    use_output_gate   without it the output is normalised as before, and not gated
    decay             "fixed": no f_proj, so that dt_bias and A_log alone say how fast a channel forgets; "none": the decays are 1
    initial_decay     dt_bias is set so that this is what a step leaves for an input of zero
    """

    def __init__(self, use_output_gate=True, decay="learned", initial_decay=None, **kwargs):
        super().__init__(**kwargs)
        if not use_output_gate:
            self.g_proj = _NoGate(self.value_dim)
            self.o_norm = _UngatedRMSNorm(self.head_v_dim, eps=self.o_norm.eps)
        if initial_decay is not None:
            with torch.no_grad():
                self.dt_bias.copy_(self._bias_of(initial_decay))
        if decay != "learned":
            off = torch.full_like(self.dt_bias, -KEEPS_ALL if decay == "none" else 0.0)
            self.f_proj = ConstantGate(off, trained=False)
        if decay == "none":  # parameters that nothing depends on would be counted and never learn
            for name in ("A_log", "dt_bias"):
                value = torch.zeros_like(getattr(self, name))
                delattr(self, name)
                self.register_buffer(name, value)

    def _bias_of(self, decay: float) -> torch.Tensor:
        """dt_bias (HV K,) for which a channel keeps `decay` where f_proj gives 0."""
        log, rate = math.log(decay), self.A_log.exp().repeat_interleave(self.head_k_dim)
        if self.lower_bound is None:
            wanted = -log / rate
            return wanted + torch.log(-torch.expm1(-wanted))  # the inverse of softplus
        share = log / self.lower_bound
        if share >= 1:
            raise InputError(
                f"initial_decay is {decay}; with lower_bound={self.lower_bound} a step leaves more than "
                f"{math.exp(self.lower_bound):.3g}"
            )
        return math.log(share / (1 - share)) / rate


class _NoGate(nn.Module):
    """Stands for the projection of a gate that is not there: (B, T, D) -> zeros (B, T, width)."""

    def __init__(self, width: int):
        super().__init__()
        self.width = width

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x.new_zeros(()).expand(*x.shape[:-1], self.width)


class _UngatedRMSNorm(RMSNorm):
    def forward(self, x: torch.Tensor, gate: torch.Tensor) -> torch.Tensor:
        return super().forward(x)
