"""DeltaNet and Gated DeltaProduct in float32 on CUDA too. Axes: B batch, T time, H heads, D channels.

fla's chunk kernels for these two take half precision only, so that fla's layers train on CUDA under autocast alone. Here queries, keys,
values and beta are rounded to bfloat16 around the kernel where it would refuse them; everything else stays in the model's type.
Parameters, their names and their initialisation are fla's.
"""

import fla.layers.delta_net
import fla.layers.gated_deltaproduct
import torch
from fla.layers.utils import get_layer_cache, update_layer_cache
from torch.nn import functional as F

SHORT = 64  # steps up to which fla takes the recurrent kernel, which computes in float32
_ACTIVATIONS = {"silu": F.silu, "relu": F.relu, "elu": fla.layers.delta_net.elu_p1, "identity": lambda x: x}


class DeltaNet(fla.layers.delta_net.DeltaNet):
    """fla's DeltaNet. `computes_in`: the type of its kernel's inputs on CUDA beyond SHORT steps, also in a float32 model."""

    computes_in = "bfloat16"

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
        q, k, v, last, conv_state = _projected(self, hidden_states, attention_mask, past_key_values, use_cache)
        if not self.use_short_conv:
            v = F.silu(v)
        if not (self.use_short_conv and self.qk_activation == "silu"):  # else the convolution has done it
            q, k = map(_ACTIVATIONS[self.qk_activation], (q, k))
        if self.qk_norm == "sum":
            q, k = map(fla.layers.delta_net.sum_norm, (q, k))
        beta = self.b_proj(hidden_states).sigmoid() if self.use_beta else q.new_ones(q.shape[:-1])
        arguments = {
            "beta": beta * 2 if self.allow_neg_eigval else beta,
            "initial_state": last,
            "output_final_state": use_cache,
            "use_qk_l2norm_in_kernel": self.qk_norm == "l2",
        }
        # looked up when called: kernels.enable() replaces them
        if self.mode == "fused_recurrent" or hidden_states.shape[1] <= SHORT:
            out, state = fla.layers.delta_net.fused_recurrent_delta_rule(q=q, k=k, v=v, **arguments)
        else:
            out, state = in_half_on_cuda(fla.layers.delta_net.chunk_delta_rule, q, k, v, **arguments)
        update_layer_cache(
            self, past_key_values, recurrent_state=state, conv_state=conv_state, offset=hidden_states.shape[1]
        )
        return _gated(self, out, hidden_states, self.use_gate), None, past_key_values


class GatedDeltaProduct(fla.layers.gated_deltaproduct.GatedDeltaProduct):
    """fla's Gated DeltaProduct. `computes_in`: the type of its kernel's inputs on CUDA, but for evaluation up to SHORT steps."""

    computes_in = "bfloat16"

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
        q, k, v, last, conv_state = _projected(self, hidden_states, attention_mask, past_key_values, use_cache)
        if not self.use_short_conv:
            q, k, v = F.silu(q), F.silu(k), F.silu(v)
        writes, steps = self.num_householder, hidden_states.shape[1]
        k, v = (x.unflatten(2, (writes, -1)).flatten(1, 2) for x in (k, v))  # (B, T writes, H, D)
        if self.num_v_heads > self.num_heads:
            q, k = (x.repeat_interleave(self.num_v_heads // self.num_heads, 2) for x in (q, k))
        beta = self.b_proj(hidden_states).sigmoid().unflatten(-1, (writes, -1)).flatten(1, 2)
        g = None
        if self.use_forget_gate:
            rate = F.softplus(self.a_proj(hidden_states).float() + self.dt_bias)
            g = -self.A_log.float().exp() * rate
        arguments = {
            "beta": beta * 2 if self.allow_neg_eigval else beta,
            "initial_state": last,
            "output_final_state": use_cache,
            "use_qk_l2norm_in_kernel": True,
        }
        if torch.is_grad_enabled() or self.training or (steps > SHORT and self.mode == "chunk"):
            out, state = in_half_on_cuda(
                fla.layers.gated_deltaproduct.chunk_gated_delta_product,
                q, k, v, g=g, num_householder=writes, **arguments,
            )  # fmt: skip
        else:
            if g is not None:  # a step decays before its first write and is read after its last
                g = F.pad(g.unsqueeze(2), (0, 0, 0, writes - 1)).flatten(1, 2)
            q = F.pad(q.unsqueeze(2), (0, 0, 0, 0, writes - 1, 0)).flatten(1, 2)
            out, state = fla.layers.gated_deltaproduct.fused_recurrent_gated_delta_rule(
                q=q, k=k, v=v, g=g, **arguments
            )
            out = out[:, writes - 1 :: writes].contiguous()
        update_layer_cache(self, past_key_values, recurrent_state=state, conv_state=conv_state, offset=steps)
        return _gated(self, out, hidden_states, self.use_output_gate), None, past_key_values


def in_half_on_cuda(op, q, k, v, beta, **arguments):
    """op's outputs and last state, its inputs in bfloat16 where it refuses float32, the outputs in q's type."""
    if not _refused(q):
        return op(q=q, k=k, v=v, beta=beta, **arguments)
    out, state = op(q=q.bfloat16(), k=k.bfloat16(), v=v.bfloat16(), beta=beta.bfloat16(), **arguments)
    return out.to(q.dtype), state


def _refused(q):
    return q.is_cuda and q.dtype == torch.float32


def _projected(layer, x, attention_mask, past_key_values, use_cache):
    """q, k, v (B, T, H, D) after the convolutions if there are any, the last recurrent state, and the convolutions' states."""
    if attention_mask is not None:
        raise NotImplementedError("pad on the right and give no attention_mask: the layer is causal")
    last = get_layer_cache(layer, past_key_values) or {"recurrent_state": None, "conv_state": None}
    projected, states = [getattr(layer, f"{name}_proj")(x) for name in "qkv"], None
    if layer.use_short_conv:
        convolved = [
            getattr(layer, f"{name}_conv1d")(x=part, cache=state, output_final_state=use_cache)
            for name, part, state in zip("qkv", projected, last["conv_state"] or (None,) * 3, strict=True)
        ]
        projected, states = zip(*convolved, strict=True)
    widths = (layer.head_k_dim, layer.head_k_dim, layer.head_v_dim)
    q, k, v = (part.unflatten(-1, (-1, width)) for part, width in zip(projected, widths, strict=True))
    return q, k, v, last["recurrent_state"], states


def _gated(layer, out, x, gate):
    """The layer's output (B, T, D) from the op's (B, T, H, V)."""
    if gate:
        out = layer.o_norm(out, layer.g_proj(x).unflatten(-1, (-1, layer.head_v_dim)))
    else:
        out = layer.o_norm(out)
    return layer.o_proj(out.flatten(-2))
