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
