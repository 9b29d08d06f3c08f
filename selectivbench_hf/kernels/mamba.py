"""Mamba with fla's parameters: convolution, selective scan, gate. Axes: B batch, T time, D inner channels, N state channels."""

import functools
import importlib.util
import warnings

import torch
from torch.nn import functional as F

from .mamba2 import convolution
from .scan import selective_scan


def mamba_forward(layer, hidden_states, last_state=None, use_cache=False, attention_mask=None, **kwargs):
    """The pass of a fla Mamba `layer` over (B, T, hidden), any number of steps after `last_state`.

    Returns the output (B, T, hidden), the last inputs of the convolution (B, D, W) and the last state (B, D, N); the two are None unless
    use_cache or last_state (a dict of the two) is given.
    """
    keep = use_cache or last_state is not None
    last_state = last_state or {}
    inner, states = layer.intermediate_size, layer.ssm_state_size
    x, gate = layer.in_proj(hidden_states).tensor_split([inner], -1)  # the gate may be empty
    mask = None
    if attention_mask is not None and attention_mask.shape == hidden_states.shape[:2]:
        mask = attention_mask[:, :, None].to(x.dtype)
        x = x * mask
    x, conv_state = convolution(layer, x, last_state.get("conv_state"), keep)
    if mask is not None:
        x = x * mask
    step, key, query = layer.x_proj(x).split([layer.dt_rank, states, states], -1)
    step = F.linear(step, layer.dt_proj.weight)

    with torch.autocast(hidden_states.device.type, enabled=False):
        dtype = torch.float64 if hidden_states.dtype == torch.float64 else torch.float32
        wide, bias = x.to(dtype), layer.dt_proj.bias.to(dtype)
        step, decay_step, A = F.softplus(step.to(dtype) + bias), None, wide.new_zeros(inner, states)
        if layer.A_log is not None:
            A = -layer.A_log.to(dtype).exp()
        if getattr(layer, "decay", "learned") == "fixed":
            decay_step = F.softplus(bias).expand_as(step)
        y, state = _scan(wide, step, decay_step, A, key.to(dtype), query.to(dtype), last_state.get("recurrent_state"))
        y = torch.addcmul(y, wide, layer.D.to(dtype))
        if gate.shape[-1]:
            y = y * layer.act(gate.to(dtype))
    output = layer.out_proj(y.to(x.dtype))
    return output, conv_state, state if keep else None


def _scan(x, step, decay_step, A, key, query, state):
    """x, step (B, T, D): what is written is step * x; the decay's own step, if it has one. State (B, D, N) or None."""
    if x.device.type == "cuda" and state is None and mamba_ssm_runs():
        from mamba_ssm.ops.selective_scan_interface import selective_scan_fn

        if decay_step is not None:  # mamba_ssm knows one step for both
            x, step = x * (step / decay_step), decay_step
        arguments = (part.transpose(1, 2).contiguous() for part in (x, step))
        pair = (part.transpose(1, 2).contiguous() for part in (key, query))
        y, state = selective_scan_fn(*arguments, A, *pair, return_last_state=True)
        return y.transpose(1, 2), state
    return selective_scan(x * step, step if decay_step is None else decay_step, A, key, query, state)


@functools.cache
def mamba_ssm_runs() -> bool:
    """Whether mamba_ssm is here; where it is not, says once that CUDA will be slow (fla has no kernel for Mamba)."""
    if importlib.util.find_spec("mamba_ssm") is not None:
        return True
    warnings.warn("Mamba's scan is a slow loop in torch on this GPU: install mamba_ssm for its kernel", stacklevel=2)
    return False
