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
