"""The selective scan of Mamba: every channel has its own step, every state channel of it its own decay.

    S_t = exp(dt_t A) S_{t-1} + u_t B_t^T,   y_t = S_t C_t      (Gu & Dao 2023, eq. 2, with u = dt x; loop: reference_scan.py)

There is no form of matrix products (the decays differ in two axes), so it is a loop over time: compiled by numba where that is
installed (scan_numba.py), else in torch, one multiplication of the whole state a step and everything else for LENGTH steps at once.
Both keep the state at every LENGTH-th step and compute the others again in the backward pass. A <= 0 and dt >= 0, so no exponent is
above 0.

Axes: B batch, T time, D channels, N state channels; inside, states are (B, N, D), because D is the long axis.
"""

import functools
import importlib.util
import sys

import torch

from .layout import compute_dtype, exact_backward

LENGTH = 16  # steps between kept states; the decays and states of so many steps should stay in the cache


def selective_scan(u, dt, A, B, C, initial_state=None, compiled=None):
    """u, dt (B, T, D), A (D, N), B and C (B, T, N), initial_state (B, D, N).

    Returns y (B, T, D) in u's type and the last state (B, D, N) in float32 (float64 if an input is). compiled: whether numba's form
    runs; by default where it can, which is for float32 on the CPU.
    """
    dtype = compute_dtype(u, dt, A, B, C, initial_state)
    if compiled is None:
        compiled = u.device.type == "cpu" and dtype == torch.float32 and compiled_form_runs()
    return _Scan.apply(u, dt, A, B, C, initial_state, dtype, compiled)


@functools.cache
def compiled_form_runs() -> bool:
    """Whether numba is here; where it is not, says so once."""
    if importlib.util.find_spec("numba") is not None:
        return True
    print(
        "Mamba's scan runs in torch, because numba is not installed: pip install 'selectivbench_hf[scan]' makes it about 6 times faster",
        file=sys.stderr,
    )
    return False


class _Scan(torch.autograd.Function):
    @staticmethod
    def forward(ctx, u, dt, A, B, C, initial_state, dtype, compiled):
        ctx.types = [None if x is None else x.dtype for x in (u, dt, A, B, C, initial_state)]
        with torch.autocast(u.device.type, enabled=False):
            u, dt, B, C = (x.to(dtype).contiguous() for x in (u, dt, B, C))
            A = A.to(dtype).t().contiguous()  # (N, D)
            batch, steps = u.shape[:2]
            kept = u.new_empty(
                batch, -(-steps // LENGTH) + 1, *A.shape
            )  # before each LENGTH steps, and after the last
            kept[:, 0] = 0 if initial_state is None else initial_state.to(dtype).transpose(1, 2)
            y = torch.empty_like(u)
            _forms(compiled)[0](u, dt, A, B, C, kept, y)
        ctx.compiled = compiled
        ctx.save_for_backward(u, dt, A, B, C, kept)
        return y.to(ctx.types[0]), kept[:, -1].transpose(1, 2).contiguous()

    @staticmethod
    @exact_backward
    def backward(ctx, dy, dlast):
        u, dt, A, B, C, kept = ctx.saved_tensors
        state = dlast.to(u.dtype).transpose(1, 2).contiguous()  # becomes the gradient of the initial state
        gradients = _forms(ctx.compiled)[1](u, dt, A, B, C, kept, dy.to(u.dtype).contiguous(), state)
        du, ddt, dA, dB, dC = gradients
        gradients = (du, ddt, dA.t(), dB, dC, state.transpose(1, 2))
        return *(None if t is None else g.to(t) for g, t in zip(gradients, ctx.types, strict=True)), None, None


def _forms(compiled: bool):
    if compiled:
        from . import scan_numba

        return scan_numba.forward, scan_numba.backward
    return _forward, _backward


def _spans(steps: int):
    return [(n, slice(first, min(first + LENGTH, steps))) for n, first in enumerate(range(0, steps, LENGTH))]


def _run(u, dt, A, B, state):
    """Decays and states of the steps of u (B, L, D) from `state` (B, N, D), both (B, L, N, D); writes need no loop."""
    decay = torch.mul(dt.unsqueeze(2), A).exp_()
    states = torch.mul(u.unsqueeze(2), B.unsqueeze(3))
    for now, kept in zip(states.unbind(1), decay.unbind(1), strict=True):
        now.addcmul_(kept, state)
        state = now
    return decay, states


def _forward(u, dt, A, B, C, kept, y):
    """Fills kept[:, 1:] (B, spans, N, D) and y (B, T, D)."""
    for n, span in _spans(u.shape[1]):
        _, states = _run(u[:, span], dt[:, span], A, B[:, span], kept[:, n])
        kept[:, n + 1] = states[:, -1]
        y[:, span] = torch.matmul(C[:, span].unsqueeze(2), states).squeeze(2)


def _backward(u, dt, A, B, C, kept, dy, dstate):
    """Gradients of u, dt, A, B, C; dstate (B, N, D) is that of the last state and becomes that of the first."""
    du, ddt, dB, dC = (torch.empty_like(x) for x in (u, dt, B, C))
    dA = torch.zeros_like(A)
    for n, span in reversed(_spans(u.shape[1])):
        decay, states = _run(u[:, span], dt[:, span], A, B[:, span], kept[:, n])
        dC[:, span] = torch.matmul(states, dy[:, span].unsqueeze(3)).squeeze(3)
        dstates = torch.mul(dy[:, span].unsqueeze(2), C[:, span].unsqueeze(3))
        later = dstate
        for now, after in zip(reversed(dstates.unbind(1)), reversed(decay.unbind(1)), strict=True):
            later = now.add_(later)  # all that reaches the state of this step
            later = later * after
        dstate.copy_(later)
        dB[:, span] = torch.matmul(dstates, u[:, span].unsqueeze(3)).squeeze(3)
        du[:, span] = torch.matmul(B[:, span].unsqueeze(2), dstates).squeeze(2)
        # the exponents': what the decay was multiplied with, times the decay
        decay.mul_(dstates)
        decay[:, 0].mul_(kept[:, n])
        decay[:, 1:].mul_(states[:, :-1])
        ddt[:, span] = (decay * A).sum(2)
        dA += torch.mul(decay, dt[:, span].unsqueeze(2)).sum((0, 1))
    return du, ddt, dA, dB, dC
