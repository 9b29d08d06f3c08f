"""Kimi Delta Attention and Gated DeltaNet-2 with the knobs that fla's layers have not: output gate, decay, initial decay. Axes: B T D."""

import math

import fla.layers.gdn2
import fla.layers.kda
import torch
from fla.modules import RMSNorm
from torch import nn

from ...errors import InputError
from ..gates import logit_of, turn_softplus_decay


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
            _ungate(self)
        if initial_decay is not None and self.lower_bound is not None:
            with torch.no_grad():
                self.dt_bias.copy_(self._bounded_bias_of(initial_decay))
            initial_decay = None
        turn_softplus_decay(self, "f_proj", decay, initial_decay)

    def _bounded_bias_of(self, decay: float) -> torch.Tensor:
        """dt_bias (HV K,) for which lower_bound sigmoid(exp(A_log) dt_bias) is the logarithm of `decay`."""
        share = math.log(decay) / self.lower_bound
        if share >= 1:
            raise InputError(
                f"initial_decay is {decay}; with lower_bound={self.lower_bound} a step leaves more than "
                f"{math.exp(self.lower_bound):.3g}"
            )
        return logit_of(share) / self.A_log.exp().repeat_interleave(self.head_k_dim)


class GatedDeltaNet2(fla.layers.gdn2.GatedDeltaNet2):
    """fla's layer, with the same log decay, without a bound; the arguments as above."""

    def __init__(self, use_output_gate=True, decay="learned", initial_decay=None, **kwargs):
        super().__init__(**kwargs)
        if not use_output_gate:
            _ungate(self)
        turn_softplus_decay(self, "f_proj", decay, initial_decay)


def _ungate(layer: nn.Module) -> None:
    layer.g_proj = _NoGate(layer.value_dim)
    layer.o_norm = _UngatedRMSNorm(layer.head_v_dim, eps=layer.o_norm.eps)


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
