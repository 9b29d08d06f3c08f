"""Mamba-2 as a layer of ours: fla's parameters, our scan. And what the knobs do to the layers of Mamba's kin."""

import contextlib
import logging
import math

import fla.layers.mamba2
import torch
from fla.layers.utils import get_layer_cache, update_layer_cache
from torch import nn
from torch.nn import functional as F

from ...kernels.mamba2 import dt_at_zero, ssd_forward


@contextlib.contextmanager
def quiet(module):
    """fla's layers warn about paths that ours never take."""
    logger = logging.getLogger(module.__name__)
    before = logger.level
    logger.setLevel(logging.ERROR)
    try:
        yield
    finally:
        logger.setLevel(before)


def turn_state_space(layer, dt, decay, initial_decay, use_short_conv) -> None:
    """Knobs of a layer whose state decays by exp(-exp(A_log) step), where the step for an input of zero is softplus(dt).

    With decay="fixed" that is the decay's step for any input, while what is written keeps its own; with "none" there is no A_log.
    """
    layer.decay = decay
    if initial_decay is not None:
        with torch.no_grad():
            layer.A_log.copy_((math.log(-math.log(initial_decay)) - F.softplus(dt).log()).expand_as(layer.A_log))
    if decay == "none":
        layer.A_log = None
    if not use_short_conv:
        layer.conv1d = None


def rows_from(linear: nn.Linear, first: int, count: int) -> nn.Linear:
    """A linear map with `count` of the outputs, from `first` on, and their values."""
    part = nn.Linear(linear.in_features, count, linear.bias is not None, linear.weight.device, linear.weight.dtype)
    with torch.no_grad():
        for mine, whole in zip(part.parameters(), linear.parameters(), strict=True):
            mine.copy_(whole[first : first + count])
    return part


class StateSpace:
    """The pass of a layer of Mamba's kin: `scan(layer, x, last state, use_cache, attention_mask)` is all that differs."""

    def forward(
        self,
        hidden_states,
        attention_mask=None,
        past_key_values=None,
        use_cache=False,
        output_attentions=False,
        **kwargs,
    ):
        """(B, T, D) -> (B, T, D), None, the cache."""
        last_state = get_layer_cache(self, past_key_values)
        output, conv_state, state = type(self).scan(self, hidden_states, last_state, use_cache, attention_mask)
        update_layer_cache(
            self, past_key_values, recurrent_state=state, conv_state=conv_state, offset=hidden_states.shape[1]
        )
        return output, None, past_key_values


class Mamba2(StateSpace, fla.layers.mamba2.Mamba2):
    """fla's Mamba-2, its scan run as simple gated linear attention on every device.

    fla itself takes mamba_ssm's kernels where they are installed and else a scan in plain torch that is 100 times slower; one form
    everywhere keeps results comparable. Parameters, their names and their initialisation are fla's; the knobs take parameters out, or
    set others.
    """

    scan = staticmethod(ssd_forward)

    def __init__(self, decay="learned", initial_decay=None, use_short_conv=True, use_output_gate=True, **kwargs):
        with quiet(fla.layers.mamba2):
            super().__init__(**kwargs)
        turn_state_space(self, dt_at_zero(self) + self.dt_bias, decay, initial_decay, use_short_conv)
        if not use_output_gate:
            self.in_proj = rows_from(self.in_proj, self.intermediate_size, self.conv_dim + self.num_heads)
