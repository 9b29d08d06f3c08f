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


def polynomial_loop(q, k, v, initial_state=None, scale=1.0, coefficients=(1.0, 1.0, 0.5), eps=1e-6):
    """o_i = sum_{j <= i} w_ij v_j / (sum_{j <= i} w_ij + eps), w = a + b s + c s^2, s = scale q_i k_j; coefficients a, b, c.

    The state is (B, H, F, V + 1): sums over the steps of the features of k, 1 (if a), k (if b) and sqrt(2) k_d k_e (k_d^2 for d = e), each
    times the square root of its coefficient, with v and 1.
    """
    a, b, c = coefficients
    d, e = torch.triu_indices(q.shape[-1], q.shape[-1])
    each = torch.where(d == e, c, 2 * c).to(q.dtype).sqrt()

    def features(x):
        parts = [torch.full_like(x[..., :1], a**0.5)] * bool(a) + [x * b**0.5] * bool(b)
        return torch.cat([*parts, x[..., d] * x[..., e] * each], -1)

    ones = torch.cat((v, torch.ones_like(v[..., :1])), -1)
    state, outputs = 0 if initial_state is None else initial_state, []
    for t in range(q.shape[1]):
        state = state + features(k[:, t])[..., None] * ones[:, t, :, None, :]
        sums = (features(q[:, t] * scale)[..., None] * state).sum(-2)
        outputs.append(sums[..., :-1] / (sums[..., -1:] + eps))
    return torch.stack(outputs, 1), state
