"""The recurrences as plain loops over time, in any floating type: what the chunked forms are tested against.

Axes: B batch, T time, G key heads, H value heads (a multiple of G), K key channels, V value channels.
`scale` multiplies the queries. States are (B, H, K, V). Every function returns the outputs (B, T, H, V) and the last state.
"""

import torch


def _start(initial_state, q, v):
    if initial_state is not None:
        return initial_state
    return q.new_zeros(v.shape[0], v.shape[2], q.shape[-1], v.shape[-1])


def _per_value_head(x: torch.Tensor, heads: int) -> torch.Tensor:
    """(B, T, G, K) -> (B, T, H, K): each key head serves H / G value heads in a row."""
    return x.repeat_interleave(heads // x.shape[2], dim=2)


def simple_gla_loop(q, k, v, g, scale, initial_state=None):
    """S_t = exp(g_t) S_{t-1} + k_t v_t^T, o_t = S_t^T q_t; g (B, T, H) log decay per head, or None for no decay."""
    q, k = _per_value_head(q, v.shape[2]) * scale, _per_value_head(k, v.shape[2])
    state, outputs = _start(initial_state, q, v), []
    for t in range(v.shape[1]):
        if g is not None:
            state = state * g[:, t].exp()[..., None, None]
        state = state + k[:, t, :, :, None] * v[:, t, :, None, :]
        outputs.append((q[:, t, :, :, None] * state).sum(-2))
    return torch.stack(outputs, 1), state


def gla_loop(q, k, v, g, scale, initial_state=None):
    """S_t = diag(exp(g_t)) S_{t-1} + k_t v_t^T, o_t = S_t^T q_t; g (B, T, H, K) log decay per key channel."""
    state, outputs = _start(initial_state, q, v), []
    for t in range(v.shape[1]):
        state = state * g[:, t, :, :, None].exp() + k[:, t, :, :, None] * v[:, t, :, None, :]
        outputs.append((q[:, t, :, :, None] * scale * state).sum(-2))
    return torch.stack(outputs, 1), state


def gated_delta_loop(q, k, v, g, beta, scale, initial_state=None):
    """S_t = exp(g_t) S_{t-1} + beta_t k_t (v_t - exp(g_t) S_{t-1}^T k_t)^T, o_t = S_t^T q_t; g and beta (B, T, H), g may be None."""
    q, k = _per_value_head(q, v.shape[2]) * scale, _per_value_head(k, v.shape[2])
    state, outputs = _start(initial_state, q, v), []
    for t in range(v.shape[1]):
        if g is not None:
            state = state * g[:, t].exp()[..., None, None]
        key = k[:, t, :, :, None]
        error = v[:, t] - (state * key).sum(-2)
        state = state + key * (error * beta[:, t, :, None])[..., None, :]
        outputs.append((q[:, t, :, :, None] * state).sum(-2))
    return torch.stack(outputs, 1), state
