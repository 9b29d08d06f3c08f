"""LightNet's additive gate and MesaNet as plain loops over time, in any floating type: what the fast forms are tested against.

Axes: B batch, T time, H heads, K key channels, V value channels.
"""

import torch


def additive_gate_loop(x, initial_state=None):
    """z_t = log(exp(z_{t-1}) + exp(x_t)); k_t = exp(x_t - z_t), g_t = z_{t-1} - z_t (0 from nothing). Returns k, g, the last z."""
    keys, gates = [], []
    z = None if initial_state is None else initial_state[:, 0]
    for t in range(x.shape[1]):
        new = x[:, t] if z is None else torch.logaddexp(z, x[:, t])
        keys.append((x[:, t] - new).exp())
        gates.append(torch.zeros_like(new) if z is None else z - new)
        z = new
    return torch.stack(keys, 1), torch.stack(gates, 1), z[:, None]


def mesa_loop(q, k, v, g, beta, ridge, key_state=None, value_state=None):
    """H_t = exp(g_t) H_{t-1} + beta_t k_t k_t^T, S_t = exp(g_t) S_{t-1} + beta_t k_t v_t^T, o_t = S_t^T (H_t + diag(ridge))^-1 q_t.

    q, k (B, T, H, K), v (B, T, H, V), g and beta (B, T, H), ridge (H, K). The solve is exact.
    """
    shape = (q.shape[0], *q.shape[2:])
    key_state = q.new_zeros(*shape, k.shape[-1]) if key_state is None else key_state
    value_state = q.new_zeros(*shape, v.shape[-1]) if value_state is None else value_state
    outputs = []
    for t in range(q.shape[1]):
        decay, key = g[:, t, :, None, None].exp(), (k[:, t] * beta[:, t, :, None])[..., None]
        key_state = key_state * decay + key * k[:, t, :, None, :]
        value_state = value_state * decay + key * v[:, t, :, None, :]
        weights = torch.linalg.solve(key_state + torch.diag_embed(ridge), q[:, t])
        outputs.append((weights[..., None] * value_state).sum(-2))
    return torch.stack(outputs, 1), key_state, value_state
