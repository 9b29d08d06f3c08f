"""HGRN's recurrence, one number a channel.

    h_t = exp(g_t) h_{t-1} + x_t                              (Qin et al. 2023, arXiv:2311.04823; loop: reference_slots.py)

There is nothing to multiply matrices with: a step is one pass over B x D numbers that stay in the cache, so that going through time,
on memory with time outermost, costs less than any scan that reads everything log T times. No decay is ever divided by.
Axes: B batch, T time, D channels.
"""

import torch

from .layout import compute_dtype, exact_backward


def hgrn(x, g, initial_state=None):
    """x, g (B, T, D), g <= 0 log decay; initial_state (B, D).

    Returns h (B, T, D) in x's type and the last state (B, D) in float32 (float64 if an input is).
    """
    return _HGRN.apply(x, g, initial_state)


def _swapped(x: torch.Tensor, dtype: torch.dtype) -> torch.Tensor:
    """(B, T, D) -> (T, B, D) or back, a contiguous copy."""
    return x.new_empty(x.shape[1], x.shape[0], x.shape[2], dtype=dtype).copy_(x.transpose(0, 1))


class _HGRN(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x, g, initial_state):
        dtype = compute_dtype(x, g, initial_state)
        states = x.new_zeros(x.shape[1] + 1, x.shape[0], x.shape[2], dtype=dtype)
        if initial_state is not None:
            states[0].copy_(initial_state)
        states[1:].copy_(x.transpose(0, 1))
        decay = _swapped(g, dtype).exp_()
        before, *later = states.unbind(0)
        for state, kept in zip(later, decay.unbind(0), strict=True):
            state.addcmul_(kept, before)
            before = state
        ctx.save_for_backward(decay, states)
        ctx.types = (x.dtype, g.dtype, None if initial_state is None else initial_state.dtype)
        return _swapped(states[1:], x.dtype), states[-1].clone()

    @staticmethod
    @exact_backward
    def backward(ctx, dh, dlast):
        decay, states = ctx.saved_tensors
        x_type, g_type, initial_type = ctx.types
        dx = _swapped(dh, decay.dtype)
        dx[-1] += dlast
        rows, kept = dx.unbind(0), decay.unbind(0)
        for t in range(len(rows) - 2, -1, -1):
            rows[t].addcmul_(kept[t + 1], rows[t + 1])
        dg = torch.mul(decay, dx)
        dinitial = None if initial_type is None else dg[0].to(initial_type, copy=True)
        dg = _swapped(dg.mul_(states[:-1]), g_type) if ctx.needs_input_grad[1] else None
        return _swapped(dx, x_type), dg, dinitial
