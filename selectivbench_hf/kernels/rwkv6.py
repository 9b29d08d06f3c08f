"""RWKV-6's recurrence: a decay per key channel, outputs that read the state before the step, and a bonus for the step itself.

    o_t = scale * (S_{t-1} + diag(u) k_t v_t^T)^T r_t,   S_t = diag(exp(w_t)) S_{t-1} + k_t v_t^T

(Peng et al. 2024, arXiv:2404.05892; loop: reference_slots.py). The state before step t is the one after step t - 1, so that this is
gated linear attention (gla.py) asked one step early: r_{t+1} in place of q_t, and each output moved to the step that asked.
Axes: B batch, T time, H heads, K key channels, V value channels.
"""

import torch

from .gla import gla
from .layout import compute_dtype, exact_backward


def rwkv6(r, k, v, w, u, scale=None, initial_state=None, chunk=None):
    """r, k, w (B, T, H, K), w <= 0 log decay; v (B, T, H, V); u (H, K); initial_state (B, H, K, V). scale: 1/sqrt(K).

    Returns o (B, T, H, V) in v's type and the last state (B, H, K, V) in float32 (float64 if an input is).
    """
    scale = r.shape[-1] ** -0.5 if scale is None else scale
    dtype = compute_dtype(r, k, v, w, u, initial_state)
    with torch.autocast(r.device.type, enabled=False):
        r, k, u, values = r.to(dtype), k.to(dtype), u.to(dtype), v.to(dtype)
        early = torch.cat((r[:, 1:], torch.zeros_like(r[:, :1])), 1)
        seen, last = gla(early, k, values, w, scale, initial_state, chunk)
        first = None
        if initial_state is not None:
            first = torch.einsum("bhk,bhkv->bhv", r[:, 0] * scale, initial_state.to(dtype))
        out = _Bonus.apply(seen, first, r, k, values, u * scale)
    return out.to(v.dtype), last


class _Bonus(torch.autograd.Function):
    """seen (B, T, H, V) one step later, behind first (B, H, V) or zeros, plus (sum over K of r u k) v."""

    @staticmethod
    def forward(ctx, seen, first, r, k, v, u):
        bonus = torch.linalg.vecdot(r * k, u).unsqueeze(-1)
        out = torch.empty_like(v)
        out[:, 1:] = seen[:, :-1]
        out[:, 0] = 0 if first is None else first
        ctx.save_for_backward(r, k, v, u, bonus)
        return out.addcmul_(bonus, v)

    @staticmethod
    @exact_backward
    def backward(ctx, dout):
        r, k, v, u, bonus = ctx.saved_tensors
        dbonus = torch.linalg.vecdot(dout, v).unsqueeze(-1)
        dseen = torch.empty_like(dout)
        dseen[:, :-1] = dout[:, 1:]
        dseen[:, -1] = 0
        scaled = dbonus * k
        du = (scaled * r).sum((0, 1))
        dr = scaled.mul_(u)
        dk = (dbonus * r).mul_(u)
        return dseen, dout[:, 0] if ctx.needs_input_grad[1] else None, dr, dk, dout * bonus, du
