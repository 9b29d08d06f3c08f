"""RWKV-7 as a layer of a model of any depth, with knobs that fla's layer has not. Axes: B T D."""

import math
import warnings

import fla.layers.rwkv7
import torch

from ...errors import InputError
from ..gates import KEEPS_ALL, ConstantGate, as_buffers, logit_of

FASTEST = -0.6065306597126334  # log decay = FASTEST * sigmoid(w_lora(x)): -exp(-1/2), Peng et al. 2025
MIXTURES = ("x_r", "x_w", "x_k", "x_v", "x_a", "x_g")


class RWKV7Attention(fla.layers.rwkv7.RWKV7Attention):
    """fla's layer, its parameters and its initialisation. Layers beyond the first mix their values with those of the first, which a
    pass through the model hands on in `shared`.

    use_output_gate   without it the output is normalised as before, and not gated
    decay             "fixed": constants per channel instead of w_lora; "none": the decays are 1
    initial_decay     the bias of w_lora is set so that this is what a step leaves for an input of zero
    """

    takes_shared = True

    def __init__(self, num_hidden_layers, use_output_gate=True, decay="learned", initial_decay=None, **kwargs):
        with warnings.catch_warnings():
            # it recommends to compare with the authors' code; what it warns of is not ours to change in silence
            warnings.filterwarnings("ignore", message="According to Bo")
            # fla's initialisation divides by num_hidden_layers - 1: the first of two layers is that of one but for its norm
            super().__init__(num_hidden_layers=max(2, num_hidden_layers), **kwargs)
        self.num_hidden_layers = num_hidden_layers
        bias = self.w_lora.lora[2].bias
        with torch.no_grad():
            if num_hidden_layers == 1:
                self.g_norm.weight.fill_(1.0)
            if initial_decay is not None:
                bias.fill_(_bias_of(initial_decay))
        if decay != "learned":
            values = bias if decay == "fixed" else torch.full_like(bias, -KEEPS_ALL)
            self.w_lora = ConstantGate(values, trained=decay == "fixed")
            as_buffers(self, "x_w")
        if not use_output_gate:
            self.g_lora = ConstantGate(torch.ones_like(bias), trained=False)
            as_buffers(self, "x_g")
        for name in (*MIXTURES, "r_k"):  # the authors decay the weights of matrices only
            getattr(self, name)._no_weight_decay = True

    def forward(self, hidden_states, shared: dict | None = None, **kwargs):
        """(B, T, D) -> (B, T, D), None, the cache. shared["v_first"] (B, T, D): set by the first layer, read by the others."""
        shared = {} if shared is None else shared
        if self.layer_idx and "v_first" not in shared:
            raise ValueError(f"layer {self.layer_idx} of RWKV-7 needs the values of layer 0 of the same pass")
        out, _, cache, v_first = super().forward(hidden_states, v_first=shared.get("v_first"), **kwargs)
        shared["v_first"] = v_first
        return out, None, cache


def _bias_of(decay: float) -> float:
    """The b for which exp(FASTEST * sigmoid(b)) is `decay`."""
    if decay <= math.exp(FASTEST):
        raise InputError(f"initial_decay is {decay}; a step of RWKV-7 leaves more than {math.exp(FASTEST):.4f}")
    return logit_of(math.log(decay) / FASTEST)
