"""Layers of linear attention with fla's parameters, names and initialisation, for the knobs that fla's own have not.

Axes: B batch, T time, D channels, H heads, K key channels, V value channels of a head.
"""

import math

import fla.ops.lightnet  # functions of fla.ops are looked up when called: kernels.enable() may come after this import
import torch
from fla.layers.lightnet import LightNetAttention
from fla.layers.mesa_net import MesaNet as FlaMesaNet
from fla.layers.multiscale_retention import MultiScaleRetention
from fla.layers.simple_gla import SimpleGatedLinearAttention
from fla.layers.utils import get_layer_cache, update_layer_cache
from fla.modules import RMSNorm
from fla.modules.fused_norm_gate import rms_norm_swish_gate_linear
from torch import nn
from torch.nn import functional as F

SHORT = 64  # steps up to which fla takes the recurrent form


class NoConvolution(nn.Module):
    """Stands where a layer calls a short convolution: its activation alone, and no last inputs."""

    def forward(self, x, **kwargs):
        """silu(x), None."""
        return F.silu(x), None


class NoGate(nn.Module):
    """Stands where a layer multiplies by a function of its gate."""

    def forward(self, gate):
        """1."""
        return 1.0


def _refuse_mask(layer, attention_mask) -> None:
    if attention_mask is not None:
        raise NotImplementedError(
            f"{type(layer).__name__} takes no attention_mask: pad on the right, where it needs none"
        )


def _projected(layer, x, last, use_cache):
    """Queries, keys and values (B, T, channels) after the short convolutions, and the last inputs of these."""
    parts = [projection(x) for projection in (layer.q_proj, layer.k_proj, layer.v_proj)]
    if not layer.use_short_conv:
        return *parts, None
    states = [None] * 3 if last is None else last["conv_state"]
    done = [
        convolution(x=part, cache=state, output_final_state=use_cache)
        for convolution, part, state in zip(
            (layer.q_conv1d, layer.k_conv1d, layer.v_conv1d), parts, states, strict=True
        )
    ]
    return *(out for out, _ in done), tuple(state for _, state in done)


class RetNet(MultiScaleRetention):
    """Retention with the decay of its heads, and its rotary positions, to choose.

    initial_decay   what a step leaves of every head's state; None: 1 - 2^(-5 - h) for head h, as in the paper; 1: nothing is forgotten
    """

    def __init__(self, initial_decay=None, use_rope=True, **kwargs):
        super().__init__(**kwargs)
        if not use_rope:
            self.rotary = None
        self.initial_decay = initial_decay

    def log_decays(self, device) -> torch.Tensor | None:
        """(H,), or None where nothing is forgotten."""
        if self.initial_decay == 1:
            return None
        if self.initial_decay is not None:
            return torch.full((self.num_heads,), math.log(self.initial_decay), device=device)
        heads = torch.arange(self.num_heads, dtype=torch.float32, device=device)
        return torch.log1p(-torch.exp2(-5 - heads))

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
        _refuse_mask(self, attention_mask)
        steps = hidden_states.shape[1]
        last = get_layer_cache(self, past_key_values)
        q, k, v, conv_state = _projected(self, hidden_states, last, use_cache)
        q, k, v = (
            x.unflatten(-1, (-1, d)) for x, d in ((q, self.head_k_dim), (k, self.head_k_dim), (v, self.head_v_dim))
        )
        if self.feature_map_fn is not None:
            q, k = self.feature_map_fn(q), self.feature_map_fn(k)
        if self.rotary is not None:
            seen = 0 if past_key_values is None else past_key_values.get_seq_length(self.layer_idx)
            q, k = self.rotary(q, k, seqlen_offset=seen, max_seqlen=seen + steps)
        if self.num_kv_groups > 1:
            k, v = (x.repeat_interleave(self.num_kv_groups, dim=-2) for x in (k, v))
        recurrent = steps <= SHORT and not torch.is_grad_enabled()
        o, state = (fla.ops.fused_recurrent_simple_gla if recurrent else fla.ops.chunk_simple_gla)(
            q=q,
            k=k,
            v=v,
            g_gamma=self.log_decays(q.device),
            initial_state=None if last is None else last["recurrent_state"],
            output_final_state=use_cache,
        )
        update_layer_cache(self, past_key_values, recurrent_state=state, conv_state=conv_state, offset=steps)
        if self.use_output_gate:
            gate = self.g_proj(hidden_states).unflatten(-1, (-1, self.head_v_dim))
            o = self.g_norm_swish_gate(o, gate) if self.fuse_norm_and_gate else self.g_norm(o) * self.gate_fn(gate)
        else:
            o = self.g_norm(o)
        return self.o_proj(o.flatten(-2)), None, past_key_values


class LightNet(LightNetAttention):
    """LightNet with its output gate to choose; without it, its norm is that of the gated one."""

    def __init__(self, use_output_gate=True, **kwargs):
        super().__init__(**kwargs)
        if not use_output_gate:
            self.g_proj = None
            self.g_norm = RMSNorm(
                self.hidden_size,
                elementwise_affine=kwargs.get("elementwise_affine", True),
                eps=1e-6,
                dtype=torch.float32,
            )

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
        _refuse_mask(self, attention_mask)
        steps = hidden_states.shape[1]
        last = get_layer_cache(self, past_key_values)
        q, k, v, conv_state = _projected(self, hidden_states, last, use_cache)
        o, (state, normaliser) = (
            fla.ops.lightnet.chunk_lightnet if steps > SHORT else fla.ops.lightnet.fused_recurrent_lightnet
        )(
            q=F.silu(q).unflatten(-1, (-1, self.head_f_dim)),
            k=k.unflatten(-1, (-1, self.head_f_dim)),
            v=v.unflatten(-1, (-1, self.head_i_dim)),
            initial_state=None if last is None else (last["recurrent_state"], last["ffn_state"]),
            output_final_state=use_cache,
            state_v_first=True,
        )
        update_layer_cache(
            self, past_key_values, recurrent_state=state, conv_state=conv_state, ffn_state=normaliser, offset=steps
        )
        o = o.flatten(-2)
        if self.g_proj is None:
            return self.o_proj(self.g_norm(o)), None, past_key_values
        norm, projection = self.g_norm, self.o_proj
        o = rms_norm_swish_gate_linear(
            o, self.g_proj(hidden_states), norm.weight, norm.bias, projection.weight, projection.bias
        )
        return o, None, past_key_values


class SimpleGLA(SimpleGatedLinearAttention):
    """Simple gated linear attention with its output gate to choose."""

    def __init__(self, use_output_gate=True, **kwargs):
        super().__init__(**{**kwargs, "fuse_norm": kwargs.get("fuse_norm", True) and use_output_gate})
        if not use_output_gate:
            self.g_proj, self.gate_fn = nn.Identity(), NoGate()


class MesaNet(FlaMesaNet):
    """MesaNet with its short convolutions to choose: without them their activation stays."""

    def __init__(self, use_short_conv=True, **kwargs):
        super().__init__(**kwargs)
        if self.head_dim > 128:
            raise ValueError(f"a head has {self.head_dim} channels, and fla's kernels take at most 128")
        if not use_short_conv:
            self.q_conv1d, self.k_conv1d = NoConvolution(), NoConvolution()
