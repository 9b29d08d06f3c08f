"""Erasing with a decay per channel as plain loops over time, in any floating type: what the chunked forms are tested against.

Axes: B batch, T time, H heads, K key channels, V value channels. `scale` multiplies the queries. States are (B, H, K, V).
"""

import torch


def kda_loop(q, k, v, g, beta, scale, initial_state=None):
    """S' = diag(exp(g_t)) S_{t-1}, S_t = S' + beta_t k_t (v_t - S'^T k_t)^T, o_t = S_t^T q_t; g (B, T, H, K), beta (B, T, H)."""
    repeat = v.shape[2] // q.shape[2]
    q, k = (x.repeat_interleave(repeat, dim=2) for x in (q * scale, k))
    state, outputs = _start(initial_state, q, v), []
    for t in range(v.shape[1]):
        state = state * g[:, t, :, :, None].exp()
        key = k[:, t, :, :, None]
        error = v[:, t] - (state * key).sum(-2)
        state = state + key * (error * beta[:, t, :, None])[..., None, :]
        outputs.append((q[:, t, :, :, None] * state).sum(-2))
    return torch.stack(outputs, 1), state


def gdn2_loop(q, k, v, g, b, w, scale, initial_state=None):
    """S' = diag(exp(g_t)) S_{t-1}, S_t = S' + k_t (w_t v_t - S'^T (b_t k_t))^T, o_t = S_t^T q_t; g, b as k, w as v."""
    state, outputs = _start(initial_state, q, v), []
    for t in range(v.shape[1]):
        state = state * g[:, t, :, :, None].exp()
        key = k[:, t, :, :, None]
        error = w[:, t] * v[:, t] - (state * b[:, t, :, :, None] * key).sum(-2)
        state = state + key * error[..., None, :]
        outputs.append((q[:, t, :, :, None] * scale * state).sum(-2))
    return torch.stack(outputs, 1), state


def dplr_loop(q, k, v, a, b, g, scale, initial_state=None):
    """S_t = diag(exp(g_t)) S_{t-1} + b_t a_t^T S_{t-1} + k_t v_t^T, o_t = S_t^T q_t; all but v (B, T, H, K)."""
    state, outputs = _start(initial_state, q, v), []
    for t in range(v.shape[1]):
        read = (a[:, t, :, :, None] * state).sum(-2)
        state = state * g[:, t, :, :, None].exp() + b[:, t, :, :, None] * read[..., None, :]
        state = state + k[:, t, :, :, None] * v[:, t, :, None, :]
        outputs.append((q[:, t, :, :, None] * scale * state).sum(-2))
    return torch.stack(outputs, 1), state


def _start(initial_state, q, v):
    return q.new_zeros(*v.shape[:1], v.shape[2], q.shape[-1], v.shape[-1]) if initial_state is None else initial_state
