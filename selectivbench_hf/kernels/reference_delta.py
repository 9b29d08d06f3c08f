"""The delta rule's kin as plain loops over time (see reference.py). Axes: B batch, T time, H heads, K key channels, V value channels."""

import torch

from .reference import _per_value_head, _start


def gated_delta_product_loop(q, k, v, g, beta, scale, initial_state=None):
    """R = k's length / q's writes a step: S = exp(g_t) S, then R times S = S + beta k (v - S^T k)^T, then o_t = S^T q_t.

    q (B, T, G, K), g (B, T, H) or None; k (B, T R, G, K), v (B, T R, H, V), beta (B, T R, H)."""
    q, k = _per_value_head(q, v.shape[2]) * scale, _per_value_head(k, v.shape[2])
    each = k.shape[1] // q.shape[1]
    state, outputs = _start(initial_state, q, v), []
    for t in range(q.shape[1]):
        if g is not None:
            state = state * g[:, t].exp()[..., None, None]
        for j in range(each * t, each * (t + 1)):
            key = k[:, j, :, :, None]
            error = v[:, j] - (state * key).sum(-2)
            state = state + key * (error * beta[:, j, :, None])[..., None, :]
        outputs.append((q[:, t, :, :, None] * state).sum(-2))
    return torch.stack(outputs, 1), state


def comba_loop(q, k, v, p, g, beta, scale, initial_state=None):
    """S_t = exp(g_t) S_{t-1} + beta_t k_t (v_t - S_{t-1}^T p_t)^T, o_t = S_t^T q_t: erased before the decay, with keys p of its own.

    q, k, p (B, T, G, K), v (B, T, H, V), g and beta (B, T, H)."""
    q, k, p = (_per_value_head(x, v.shape[2]) for x in (q * scale, k, p))
    state, outputs = _start(initial_state, q, v), []
    for t in range(v.shape[1]):
        error = v[:, t] - (state * p[:, t, :, :, None]).sum(-2)
        state = state * g[:, t].exp()[..., None, None]
        state = state + k[:, t, :, :, None] * (error * beta[:, t, :, None])[..., None, :]
        outputs.append((q[:, t, :, :, None] * state).sum(-2))
    return torch.stack(outputs, 1), state
