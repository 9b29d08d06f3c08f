"""RWKV-6's recurrence: a decay per key channel, outputs that read the state before the step, and a bonus for the step itself.

    o_t = scale * (S_{t-1} + diag(u) k_t v_t^T)^T r_t,   S_t = diag(exp(w_t)) S_{t-1} + k_t v_t^T

(Peng et al. 2024, arXiv:2404.05892; loop: reference_slots.py). The state before step t is the one after step t - 1, so that this is
gated linear attention (gla.py) asked one step early: r_{t+1} in place of q_t, and each output moved to the step that asked.
Axes: B batch, T time, H heads, K key channels, V value channels.
"""

import torch

from .gla import gla
from .layout import compute_dtype


def rwkv6(r, k, v, w, u, scale=None, initial_state=None, chunk=None):
    """r, k, w (B, T, H, K), w <= 0 log decay; v (B, T, H, V); u (H, K); initial_state (B, H, K, V). scale: 1/sqrt(K).

    Returns o (B, T, H, V) in v's type and the last state (B, H, K, V) in float32 (float64 if an input is).
    """
    scale = r.shape[-1] ** -0.5 if scale is None else scale
    dtype = compute_dtype(r, k, v, w, u, initial_state)
    with torch.autocast(r.device.type, enabled=False):
        read = r.to(dtype) * scale
        values = v.to(dtype)
        early = torch.cat((read[:, 1:], torch.zeros_like(read[:, :1])), 1)
        seen, last = gla(early, k, values, w, 1.0, initial_state, chunk)
        if initial_state is None:
            first = torch.zeros_like(values[:, :1])
        else:
            first = torch.einsum("bhk,bhkv->bhv", read[:, 0], initial_state.to(dtype)).unsqueeze(1)
        bonus = (read * k * u).sum(-1, keepdim=True)
        out = torch.addcmul(torch.cat((first, seen[:, :-1]), 1), bonus, values)
    return out.to(v.dtype), last
