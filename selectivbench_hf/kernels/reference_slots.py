"""HGRN, gated slot attention and RWKV-6 as plain loops over time, in any floating type: what the fast forms are tested against.

Axes: B batch, T time, D channels, H heads, K key channels, V value channels, M slots.
"""

import torch


def hgrn_loop(x, g, initial_state=None):
    """h_t = exp(g_t) h_{t-1} + x_t; x, g (B, T, D), initial_state (B, D). Returns h (B, T, D) and the last one."""
    state = torch.zeros_like(x[:, 0]) if initial_state is None else initial_state
    outputs = []
    for t in range(x.shape[1]):
        state = state * g[:, t].exp() + x[:, t]
        outputs.append(state)
    return torch.stack(outputs, 1), state


def gsa_loop(q, k, v, s, g, initial_state=None, scale=1.0):
    """Slots of keys K_t = diag(exp(g_t)) K_{t-1} + s_t k_t^T and of values V_t likewise, o_t = V_t^T softmax(scale K_t q_t).

    q, k (B, T, H, K); v (B, T, H, V); s, g (B, T, H, S); states (B, H, K, S) and (B, H, S, V).
    """
    if initial_state is None:
        keys, values = q.new_zeros(*k[:, 0].shape, s.shape[-1]), q.new_zeros(*s[:, 0].shape, v.shape[-1])
    else:
        keys, values = initial_state
    outputs = []
    for t in range(q.shape[1]):
        kept = g[:, t].exp()
        keys = keys * kept[..., None, :] + k[:, t, :, :, None] * s[:, t, :, None, :]
        values = values * kept[..., None] + s[:, t, :, :, None] * v[:, t, :, None, :]
        read = (q[:, t, :, :, None] * scale * keys).sum(-2).softmax(-1)
        outputs.append((read[..., None] * values).sum(-2))
    return torch.stack(outputs, 1), (keys, values)


def rwkv6_loop(r, k, v, w, u, initial_state=None, scale=1.0):
    """o_t = scale (S_{t-1} + diag(u) k_t v_t^T)^T r_t, S_t = diag(exp(w_t)) S_{t-1} + k_t v_t^T; r, k, w (B, T, H, K), u (H, K)."""
    state = k.new_zeros(*k[:, 0].shape, v.shape[-1]) if initial_state is None else initial_state
    outputs = []
    for t in range(r.shape[1]):
        write = k[:, t, :, :, None] * v[:, t, :, None, :]
        outputs.append((r[:, t, :, :, None] * scale * (state + u[..., None] * write)).sum(-2))
        state = state * w[:, t, :, :, None].exp() + write
    return torch.stack(outputs, 1), state
