"""The scans of state-space models as plain loops over time, in any floating type: what the fast forms are tested against.

Axes: B batch, T time, D channels, N state channels.
"""

import torch


def selective_scan_loop(u, dt, A, key, query, initial_state=None):
    """S_t = exp(dt_t A) S_{t-1} + u_t key_t^T, y_t = S_t query_t; u, dt (B, T, D), A (D, N), key, query (B, T, N), states (B, D, N)."""
    state = u.new_zeros(u.shape[0], *A.shape) if initial_state is None else initial_state
    outputs = []
    for t in range(u.shape[1]):
        state = (dt[:, t, :, None] * A).exp() * state + u[:, t, :, None] * key[:, t, None, :]
        outputs.append((state * query[:, t, None, :]).sum(-1))
    return torch.stack(outputs, 1), state


def diagonal_ssm_loop(u, log_decay, phase, weight, initial_state=None):
    """s_t = exp(log_decay + i phase) s_{t-1} + u_t, y_t = Re(weight s_t) summed over N.

    u (B, T, D), log_decay and phase (D, N), weight (D, N, 2) and states (B, D, N, 2), real and imaginary parts.
    """
    factor, weight = torch.polar(log_decay.exp(), phase), torch.view_as_complex(weight.contiguous())
    state = u.new_zeros(u.shape[0], *weight.shape, dtype=weight.dtype)
    if initial_state is not None:
        state = torch.view_as_complex(initial_state.contiguous())
    outputs = []
    for t in range(u.shape[1]):
        state = factor * state + u[:, t, :, None]
        outputs.append((weight * state).real.sum(-1))
    return torch.stack(outputs, 1), torch.view_as_real(state)


def log_linear_pairs(q, k, v, g, scales, scale):
    """o_i = sum over j <= i of scales_i[level(i, j)] exp(g_{j+1} + ... + g_i) (q_i k_j) v_j, with level(i, j) the bit length of i xor j.

    q, k (B, T, G, K), v (B, T, H, V), g (B, T, H), scales (B, T, H, L): all pairs at once.
    """
    steps, repeat = v.shape[1], v.shape[2] // q.shape[2]
    q, k = (x.repeat_interleave(repeat, dim=2) for x in (q, k))
    level = torch.tensor([[(i ^ j).bit_length() for j in range(steps)] for i in range(steps)])
    total = g.cumsum(1).transpose(1, 2)
    past = torch.ones(steps, steps, dtype=torch.bool).tril()
    decay = (total[..., :, None] - total[..., None, :]).masked_fill(~past, -torch.inf).exp()
    by_level = scales.transpose(1, 2).gather(-1, level.masked_fill(~past, 0).expand(*total.shape, -1))
    weights = torch.einsum("bihk,bjhk->bhij", q * scale, k) * decay * by_level
    return torch.einsum("bhij,bjhv->bihv", weights, v)
