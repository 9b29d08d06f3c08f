"""Mamba-2 with its scan as simple gated linear attention: q = C, k = B, v = dt x, g = dt A, plus the skip D x (the SSD identity).

One form on every device: our chunked kernel on CPU tensors, fla's Triton kernel on CUDA tensors.
Axes: B batch, T time, H heads, P channels of a head, N state channels.
"""

import torch
from torch.nn import functional as F

from .simple_gla import simple_gla


def ssd_forward(layer, hidden_states, last_state=None, use_cache=False, attention_mask=None):
    """The pass of a fla Mamba2 `layer` over (B, T, D). Returns output (B, T, D), the last inputs of the convolution (B, channels, W)
    and the last state (B, H, P, N); the two are None unless use_cache or last_state (a dict of the two) is given."""
    keep = use_cache or last_state is not None
    batch, steps, _ = hidden_states.shape
    groups, state_channels, inner = layer.n_groups, layer.ssm_state_size, layer.intermediate_size
    projected = layer.in_proj(hidden_states)
    gate_width = projected.shape[-1] - layer.conv_dim - layer.num_heads  # 0: the layer has no gate
    gate, conv_in, dt = projected.split([gate_width, layer.conv_dim, layer.num_heads], -1)
    mask = None
    if attention_mask is not None and attention_mask.shape == hidden_states.shape[:2]:
        mask = attention_mask[:, :, None].to(conv_in.dtype)
        conv_in = conv_in * mask
    conv_state = None if last_state is None else last_state["conv_state"]
    conv_out, conv_state = convolution(layer, conv_in, conv_state, keep)
    if mask is not None:
        conv_out = conv_out * mask

    with torch.autocast(hidden_states.device.type, enabled=False):
        dtype = torch.float64 if hidden_states.dtype == torch.float64 else torch.float32
        x, key, query = conv_out.split([inner, groups * state_channels, groups * state_channels], -1)
        x = x.reshape(batch, steps, layer.num_heads, layer.head_dim).to(dtype)
        key, query = (part.reshape(batch, steps, groups, state_channels) for part in (key, query))
        decay, dt = decay_and_step(layer, dt.to(dtype))
        state = None if last_state is None else last_state["recurrent_state"].transpose(-1, -2).to(dtype)
        y, state = _scan(query, key, x * dt.unsqueeze(-1), decay, state)
        y = torch.addcmul(y, x, layer._get_D(expand_to_head_dim=True).to(dtype)).flatten(2)
        gate = gate.to(dtype) if gate_width else None
        if layer.rmsnorm:
            y = layer.norm(y, gate)
        elif gate is not None:
            y = y * layer.act(gate)
    output = layer.out_proj(y.to(conv_out.dtype))
    return output, conv_state, state.transpose(-1, -2).contiguous() if keep else None


def decay_and_step(layer, dt):
    """The log decay (B, T, H), None if nothing decays, and the step dt that scales what is written, from the projected dt (B, T, H)."""
    step = _step(layer, dt)
    if layer.A_log is None:
        return None, step
    decay_step = step
    if getattr(layer, "decay", "learned") == "fixed":
        decay_step = _step(layer, dt_at_zero(layer).to(dt.dtype)).expand_as(step)
    return decay_step * -layer.A_log.to(dt.dtype).exp(), step


def dt_at_zero(layer):
    """The projected dt for an input of zero, (H,)."""
    bias, behind = (
        layer.in_proj.bias,
        getattr(layer, "num_lambda_dims", 0),
    )  # what log-linear Mamba-2 projects after dt
    if bias is None:
        return torch.zeros_like(layer.dt_bias)
    return bias[len(bias) - layer.num_heads * (1 + behind) :][: layer.num_heads]


def _step(layer, dt):
    """softplus(dt + bias), within the layer's limits."""
    dt = F.softplus(dt + layer.dt_bias.to(dt.dtype))
    return dt if tuple(layer.dt_limit) == (0.0, float("inf")) else dt.clamp(*layer.dt_limit)


def _scan(query, key, value, decay, state):
    """query, key (B, T, G, N), value (B, T, H, P): each group serves H / G heads in a row, as in mamba_ssm and in fla's decoding (its
    torch prefill tiles the groups instead, which is the same for one group)."""
    if value.device.type == "cpu":
        return simple_gla(query, key, value, decay, 1.0, state)
    from fla.ops.simple_gla import chunk_simple_gla

    repeat = value.shape[2] // query.shape[2]
    query, key = (x.repeat_interleave(repeat, dim=2) for x in (query, key))
    # in half precision if the layer computes in it; decays and states stay float32
    out, state = chunk_simple_gla(
        query, key, value.to(query.dtype), g=decay, scale=1.0, initial_state=state, output_final_state=True
    )
    return out.to(value.dtype), state


def convolution(layer, x, state, keep):
    """The short convolution of (B, T, channels), if the layer has one, with its activation, and the last W inputs."""
    if layer.conv1d is None:
        return layer.act(x), None
    weight, bias = layer.conv1d.weight.squeeze(1), layer.conv1d.bias
    activation = "silu" if layer.activation in ("silu", "swish") else None
    from fla.modules.convolution import causal_conv1d

    out, new_state = causal_conv1d(
        x,
        weight=weight,
        bias=bias,
        initial_state=state,
        output_final_state=keep,
        activation=activation,
        backend="triton",
    )
    return (out if activation else layer.act(out)), new_state
