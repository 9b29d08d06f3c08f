"""HGRN, HGRN2, gated slot attention and ABC as layers of ours: fla's parameters, and room for the knobs.

In the first three one projection f makes the decay and, as 1 - decay, the strength of the write. With a decay that is fixed or none, the
writes stay what f makes of the input, and the decay comes from elsewhere. Axes: B batch, T time, D channels, H heads.
"""

import torch
from fla.layers.abc import ABCAttention
from fla.layers.gsa import GatedSlotAttention
from fla.layers.hgrn import HGRNAttention
from fla.layers.hgrn2 import HGRN2Attention
from fla.layers.utils import get_layer_cache, update_layer_cache
from fla.modules import RMSNorm
from fla.modules.activations import swiglu, swish
from fla.modules.layernorm import rms_norm_linear
from fla.ops import gla, gsa, hgrn  # the modules: kernels.enable() may change their functions after this import
from fla.ops.gsa.gate import fused_additive_gate
from torch import nn
from torch.nn import functional as F

from ..gates import ConstantGate, logit_of


class _Forgetting:
    """The knobs `decay` and `initial_decay`, of a layer with f_proj and, with short convolutions, f_conv1d."""

    def _turn(self, width: int, decay: str, initial_decay: float | None, normalizer: float = 1.0, bound: float = 0.0):
        """width: decays of a step; bound: what the decay is above, before training."""
        self.decay, self.normalizer = decay, normalizer
        start = 0.0
        if initial_decay is not None:
            if initial_decay <= bound:
                raise ValueError(
                    f"initial_decay={initial_decay:g} is not above the lower bound {bound:g} of layer {self.layer_idx}; "
                    "use_lower_bound=false takes the bounds away"
                )
            start = logit_of((initial_decay - bound) / (1 - bound), normalizer)
        if decay == "fixed":
            self.f_constant = ConstantGate(torch.full((width,), start), trained=True)
        elif decay == "learned" and initial_decay is not None:
            last = getattr(self, "f_conv1d", self.f_proj)  # fla's f has no bias of its own
            last.bias = nn.Parameter(torch.full((width,), start))

    def _log_decay(self, x, f, bound=None):
        """What f and, with a constant in its place, the decay come to: logarithms."""
        learned = _above(F.logsigmoid(f) / self.normalizer, bound)
        if self.decay == "none":
            return learned, torch.zeros_like(learned)
        if self.decay == "fixed":
            constant = self.f_constant(x).expand_as(f)
            return learned, _above(F.logsigmoid(constant) / self.normalizer, bound)
        return learned, learned


def _convolved(layer, names: str, values: tuple, state, use_cache) -> tuple[list, tuple | None]:
    """The layer's short convolutions of these names over these values, and what they keep."""
    if not layer.use_short_conv:
        return list(values), None
    kept = [None] * len(names) if state is None else state["conv_state"]
    pairs = [
        getattr(layer, f"{name}_conv1d")(x=value, cache=cache, output_final_state=use_cache)
        for name, value, cache in zip(names, values, kept, strict=True)
    ]
    return [y for y, _ in pairs], tuple(cache for _, cache in pairs)


def _above(log_decay, bound):
    """log(bound + (1 - bound) * decay), or the same where there is no bound."""
    return log_decay if bound is None else torch.logaddexp(bound.log(), torch.log1p(-bound) + log_decay)


class _Bounds:
    """The lower bounds of the decays of all layers, one parameter as in fla's models of HGRN: the first layer holds it and the others
    find it in `shared`. They grow from layer to layer, so that the upper layers remember longer (Qin et al. 2023, section 3.2)."""

    takes_shared = True

    def _make_bounds(self, wanted: bool, layers: int, width: int) -> float:
        """Returns this layer's bound before training."""
        self.lower_bounds = None
        if not wanted:
            return 0.0
        if layers > 1 and self.layer_idx == 0:
            self.lower_bounds = nn.Parameter(torch.zeros(layers, width))
            self.lower_bounds._no_weight_decay = True
        return self.layer_idx / layers

    def _bound(self, shared):
        if shared is None:
            return None
        if self.lower_bounds is not None:
            wide = torch.promote_types(self.lower_bounds.dtype, torch.float32)
            shares = self.lower_bounds.softmax(0, dtype=wide)
            shared["lower_bounds"] = shares.cumsum(0) - shares[0]
        bounds = shared.get("lower_bounds")
        return None if bounds is None or self.layer_idx == 0 else bounds[self.layer_idx]


class HGRN(_Bounds, _Forgetting, HGRNAttention):
    """fla's HGRN with the lower bounds of fla's whole models."""

    def __init__(
        self, hidden_size, layer_idx=0, num_hidden_layers=1, use_lower_bound=True, use_output_gate=True, decay="learned",
        initial_decay=None, elementwise_affine=True, norm_eps=1e-5, **kwargs,
    ):  # fmt: skip
        super().__init__(
            hidden_size=hidden_size, layer_idx=layer_idx, elementwise_affine=elementwise_affine, norm_eps=norm_eps, **kwargs
        )  # fmt: skip
        bound = self._make_bounds(use_lower_bound, num_hidden_layers, self.input_dim)
        self._turn(self.input_dim, decay, initial_decay, bound=bound)
        self.use_output_gate = use_output_gate
        if not use_output_gate:
            self.g_proj = None
            self.g_norm = RMSNorm(self.input_dim, elementwise_affine=elementwise_affine, eps=norm_eps)

    def forward(self, hidden_states, past_key_values=None, use_cache=False, shared=None, **kwargs):
        """(B, T, D) -> (B, T, D), None, the cache."""
        bound = self._bound(shared)
        if self.decay == "learned" and self.use_output_gate:
            return super().forward(
                hidden_states, past_key_values=past_key_values, use_cache=use_cache, lower_bound=bound, **kwargs
            )
        x, state = hidden_states, get_layer_cache(self, past_key_values)
        (i, f), kept = _convolved(self, "if", (self.i_proj(x), self.f_proj(x)), state, use_cache)
        learned, decay = self._log_decay(x, f, bound)
        o, last = hgrn.chunk_hgrn(
            x=swiglu(i, 1 - learned.to(f).exp()),
            g=decay.to(f),
            initial_state=None if state is None else state["recurrent_state"],
            output_final_state=use_cache,
        )
        update_layer_cache(self, past_key_values, recurrent_state=last, conv_state=kept, offset=x.shape[1])
        o = self.g_norm(o, self.g_proj(x)) if self.use_output_gate else self.g_norm(o)
        return self.o_proj(o), None, past_key_values


class HGRN2(_Bounds, _Forgetting, HGRN2Attention):
    """fla's HGRN2 with the lower bounds of fla's whole models. state_size: key channels of a head, fla's expand_ratio, here free of
    the number of heads."""

    def __init__(
        self, hidden_size, num_heads, layer_idx=0, num_hidden_layers=1, state_size=None, use_lower_bound=True, decay="learned",
        initial_decay=None, **kwargs,
    ):  # fmt: skip
        super().__init__(
            hidden_size=hidden_size, num_heads=num_heads, expand_ratio=None, layer_idx=layer_idx, **kwargs
        )  # fmt: skip
        if state_size is not None and state_size != self.head_f_dim:
            self.expand_ratio = self.head_f_dim = state_size
            self.forget_dim = num_heads * state_size
            for name in "qf":
                setattr(self, f"{name}_proj", nn.Linear(hidden_size, self.forget_dim, bias=False))
                if self.use_short_conv:
                    conv = getattr(self, f"{name}_conv1d")
                    setattr(
                        self,
                        f"{name}_conv1d",
                        type(conv)(self.forget_dim, self.conv_size, bias=self.conv_bias, activation=None),
                    )
        bound = self._make_bounds(use_lower_bound, num_hidden_layers, self.forget_dim)
        self._turn(self.forget_dim, decay, initial_decay, bound=bound)

    def forward(self, hidden_states, past_key_values=None, use_cache=False, shared=None, **kwargs):
        """(B, T, D) -> (B, T, D), None, the cache."""
        bound = self._bound(shared)
        if self.decay == "learned":
            return super().forward(
                hidden_states, past_key_values=past_key_values, use_cache=use_cache, lower_bound=bound, **kwargs
            )
        x, state = hidden_states, get_layer_cache(self, past_key_values)
        values = (self.q_proj(x), self.f_proj(x), self.i_proj(x))
        (q, f, i), kept = _convolved(self, "qfi", values, state, use_cache)
        learned, decay = self._log_decay(x, f, bound)
        q, k, g, v = (y.unflatten(-1, (self.num_heads, -1)) for y in (swish(q), (1 - learned.exp()).to(i), decay, i))
        o, last = gla.chunk_gla(
            q=q,
            k=k,
            v=v,
            g=g,
            initial_state=None if state is None else state["recurrent_state"],
            output_final_state=use_cache,
            state_v_first=True,
        )
        update_layer_cache(self, past_key_values, recurrent_state=last, conv_state=kept, offset=x.shape[1])
        weights = (self.g_norm.weight, self.g_norm.bias, self.o_proj.weight, self.o_proj.bias)
        return rms_norm_linear(o.flatten(-2), *weights), None, past_key_values


class SlotAttention(_Forgetting, GatedSlotAttention):
    """fla's gated slot attention. expand_v may differ from 1: the norm is as wide as the values, where fla's is as wide as the model."""

    def __init__(
        self, hidden_size, num_heads, layer_idx=0, gate_logit_normalizer=8, decay="learned", initial_decay=None,
        elementwise_affine=True, norm_eps=1e-5, **kwargs,
    ):  # fmt: skip
        super().__init__(
            hidden_size=hidden_size, num_heads=num_heads, layer_idx=layer_idx, gate_logit_normalizer=gate_logit_normalizer,
            elementwise_affine=elementwise_affine, norm_eps=norm_eps, **kwargs,
        )  # fmt: skip
        if self.value_dim != hidden_size:
            self.g_norm = RMSNorm(self.value_dim, elementwise_affine, eps=norm_eps, dtype=torch.float32)
        self._turn(self.num_kv_heads * self.num_slots, decay, initial_decay, gate_logit_normalizer)

    def forward(self, hidden_states, past_key_values=None, use_cache=False, **kwargs):
        """(B, T, D) -> (B, T, D), None, the cache."""
        if self.decay == "learned":
            return super().forward(hidden_states, past_key_values=past_key_values, use_cache=use_cache, **kwargs)
        x, state = hidden_states, get_layer_cache(self, past_key_values)
        values = (self.q_proj(x), self.k_proj(x), self.v_proj(x))
        (q, k, v), kept = _convolved(self, "qkv", values, state, use_cache)
        q = self.feature_map(q.unflatten(-1, (self.num_heads, -1)))
        k, v = (y.unflatten(-1, (self.num_kv_heads, -1)) for y in (k, v))
        learned, decay = self._log_decay(x, self.f_proj(x))
        s, g = (y.unflatten(-1, (self.num_kv_heads, -1)) for y in ((1 - learned.exp()).to(learned.dtype), decay))
        k, v, s, g = (y.repeat_interleave(self.num_kv_groups, -2) for y in (self.feature_map(k), F.silu(v), s, g))
        o, last = gsa.chunk_gsa(
            q=q,
            k=k,
            v=v,
            s=s,
            g=g,
            initial_state=None if state is None else state["recurrent_state"],
            output_final_state=use_cache,
            scale=self.scale,
        )
        update_layer_cache(self, past_key_values, recurrent_state=last, conv_state=kept, offset=x.shape[1])
        weights = (self.g_norm.weight, self.g_norm.bias, self.o_proj.weight, self.o_proj.bias)
        return rms_norm_linear(F.silu(o.flatten(-2)), *weights), None, past_key_values


class BoundedMemory(ABCAttention):
    """fla's attention with bounded-memory control. Its kernel leaves the normaliser of the slots out of the states; here it is the third
    of them, so that a sequence can go on."""

    def forward(self, hidden_states, past_key_values=None, use_cache=False, **kwargs):
        """(B, T, D) -> (B, T, D), None, the cache."""
        x, state = hidden_states, get_layer_cache(self, past_key_values)
        (q, k, v), kept = _convolved(self, "qkv", (self.q_proj(x), self.k_proj(x), self.v_proj(x)), state, use_cache)
        if self.use_input_gate:
            q, k, v = swish(q), swish(k), swish(v)
        q, k, v = (y.unflatten(-1, (self.num_heads, -1)) for y in (q, k, v))
        if self.use_rope:
            seen = 0 if past_key_values is None else past_key_values.get_seq_length(self.layer_idx)
            q, k = self.rotary(q, k, seqlen_offset=seen)
        logits = self.s_proj(x).unflatten(-1, (self.num_heads, -1)).clamp(self.clamp_min, self.clamp_max)
        slots, total = (None, None) if state is None else (state["recurrent_state"][:2], state["recurrent_state"][2])
        s, g, total = fused_additive_gate(logits, total, output_dtype=k.dtype, gate_dtype=torch.float32)
        o, slots = gsa.chunk_gsa(q=q, k=k, v=v, s=s, g=g, initial_state=slots, output_final_state=use_cache)
        if use_cache:
            update_layer_cache(
                self, past_key_values, recurrent_state=(*slots, total), conv_state=kept, offset=x.shape[1]
            )
        gate = self.g_proj(x).unflatten(-1, (self.num_heads, -1)) if self.use_output_gate else None
        if self.use_norm:
            o = self.g_norm(o) if gate is None else self.g_norm(o, gate)
        elif gate is not None:
            o = swiglu(gate, o)
        return self.o_proj(o.flatten(-2)), None, past_key_values
