"""Log-linear Mamba-2 with fla's parameters: Mamba-2 whose scan is log-linear attention. Axes as in mamba2.py, L levels.

One pass for every device; only the scan of a whole sequence differs: our kernel on CPU tensors, fla's on CUDA tensors.
"""

import torch
from torch.nn import functional as F

from .log_linear import check_levels, fenwick_states, log_linear, log_linear_step
from .mamba2 import convolution, decay_and_step


def log_linear_mamba2_forward(
    self, hidden_states, attention_mask=None, past_key_values=None, use_cache=False, output_attentions=False, **kwargs
):
    """fla's LogLinearMamba2.forward: (B, T, D) -> (B, T, D), None, the cache.

    The state in the cache is (B, L - 1, H, N, P): room for the 2^(L - 1) steps that the layer has levels for, of which T steps fill
    one matrix for every bit of T. Steps after others go one at a time.
    """
    from fla.layers.utils import get_layer_cache, update_layer_cache

    last_state = get_layer_cache(self, past_key_values)
    keep = past_key_values is not None
    batch, steps, _ = hidden_states.shape
    heads, groups, states, levels = self.num_heads, self.n_groups, self.ssm_state_size, self.num_lambda_dims
    seen = past_key_values.get_seq_length(self.layer_idx) if last_state is not None else 0
    check_levels(seen + steps, levels)
    mask = None
    if attention_mask is not None and attention_mask.shape == hidden_states.shape[:2]:
        mask = attention_mask[:, :, None].to(hidden_states.dtype)
        hidden_states = hidden_states * mask
    projected = self.in_proj(hidden_states)
    gate_width = projected.shape[-1] - self.conv_dim - heads * (1 + levels)  # 0: the layer has no gate
    gate, x, dt, weights = projected.split([gate_width, self.conv_dim, heads, heads * levels], -1)
    if mask is not None:
        x = x * mask.to(x.dtype)
    x, conv_state = convolution(self, x, None if last_state is None else last_state["conv_state"], keep)
    if mask is not None:
        x = x * mask.to(x.dtype)

    with torch.autocast(hidden_states.device.type, enabled=False):
        dtype = torch.float64 if hidden_states.dtype == torch.float64 else torch.float32
        half = x.dtype
        x, key, query = x.split([self.intermediate_size, groups * states, groups * states], -1)
        x = x.reshape(batch, steps, heads, -1).to(dtype)
        key, query = (part.reshape(batch, steps, groups, states) for part in (key, query))
        decay, dt = decay_and_step(self, dt.to(dtype))
        weights = F.softplus(self.L.to(dtype) * weights.to(dtype).unflatten(-1, (heads, levels)))
        value, state = x * dt.unsqueeze(-1), None
        decay = torch.zeros_like(dt) if decay is None else decay
        if last_state is None:
            y = _scan(query, key, value, decay, weights)
            if keep:
                state = fenwick_states(key, value, decay, levels)
        else:
            state, outputs = last_state["recurrent_state"], []
            for t in range(steps):
                now = (part[:, t] for part in (query, key, value, decay, weights))
                out, state = log_linear_step(*now, 1.0, state, seen + t)
                outputs.append(out)
            y = torch.stack(outputs, 1)
        skip = self.D.unflatten(0, (heads, -1)).to(dtype)  # one number a head, or one a channel
        y = (y + x * skip).flatten(2)
        gate = gate.to(dtype) if gate_width else None
        if self.rmsnorm:
            y = self.norm(y, gate)
        elif gate is not None:
            y = y * self.act(gate)
    output = self.out_proj(y.to(half))
    update_layer_cache(self, past_key_values, recurrent_state=state, conv_state=conv_state, offset=steps)
    return output, None, past_key_values


def _scan(query, key, value, decay, weights):
    """query, key (B, T, G, N), value (B, T, H, P), decay (B, T, H), weights (B, T, H, L)."""
    if value.device.type == "cpu":
        return log_linear(query, key, value, decay, weights, 1.0)
    from fla.ops.log_linear_attn.chunk import chunk_log_linear_attn

    out, _ = chunk_log_linear_attn(query, key, value.to(query.dtype), decay, weights, scale=1.0)
    return out.to(value.dtype)
