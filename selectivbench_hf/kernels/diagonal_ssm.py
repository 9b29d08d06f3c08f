"""State-space models with a constant, complex, diagonal transition (S4D), in chunks.

    s_t = a s_{t-1} + u_t,   y_t = Re sum_n w_n s_tn,   a = exp(log_decay + i phase)          (loop: reference_scan.py)

Nothing here depends on the input but u, so every channel is a convolution with K_l = Re sum_n w_n a_n^l: inside a chunk a product with
a triangular Toeplitz matrix, and from chunk to chunk one complex multiplication of the state. Not by FFT: its rounding errors reach
backwards in time, and it leaves no state to go on from. log_decay <= 0, so no power of a is larger than 1.

Axes: B batch, T time, D channels, N state channels (complex), C steps of a chunk, M chunks; complex numbers are pairs of real ones.
"""

import math

import torch
from torch.nn import functional as F

from .layout import chunk_length, compute_dtype

LENGTH = 64  # steps of a chunk


def diagonal_ssm(u, log_decay, phase, weight, initial_state=None, chunk=None):
    """u (B, T, D); log_decay, phase (D, N); weight (D, N, 2); initial_state (B, D, N, 2).

    Returns y (B, T, D) in u's type and the last state (B, D, N, 2) in float32 (float64 if an input is).
    """
    dtype = compute_dtype(u, log_decay, phase, weight, initial_state)
    with torch.autocast(u.device.type, enabled=False):
        batch, steps, width = u.shape
        length = chunk_length(steps, chunk or LENGTH)
        log_decay, phase, weight = (x.to(dtype) for x in (log_decay, phase, weight))
        powers = _powers(log_decay, phase, length)  # (D, N, 2, C + 1)
        kernel = _times(weight.unsqueeze(-1), powers)  # w a^l
        within = kernel[:, :, 0, :-1].sum(1)  # K (D, C)
        read = torch.cat((kernel[:, :, 0, 1:], -kernel[:, :, 1, 1:]), 1).transpose(
            1, 2
        )  # Re(w a^(i + 1) s): (D, C, 2 N)
        write = powers[..., :-1].flip(-1).transpose(1, 2).flatten(1, 2)  # a^(C - 1 - j): (D, 2 N, C)
        if initial_state is None:
            state = u.new_zeros(width, 2 * log_decay.shape[1], batch, dtype=dtype)
        else:
            state = initial_state.to(dtype).permute(1, 3, 2, 0).flatten(1, 2)
        by_channel = u.to(dtype).permute(2, 1, 0)  # (D, T, B)
        full, outputs = steps // length, []
        if full:
            chunks = (
                by_channel[:, : full * length].unflatten(1, (full, length)).transpose(1, 2).flatten(2)
            )  # (D, C, M B)
            written = torch.bmm(write, chunks).unflatten(2, (full, batch))
            over, before = powers[..., length].transpose(1, 2).unsqueeze(-1), []  # (D, 2, N, 1)
            for added in written.unbind(2):
                before.append(state)
                state = _carry(over, state) + added
            y = torch.bmm(_toeplitz(within), chunks) + torch.bmm(read, torch.stack(before, 2).flatten(2))
            outputs.append(y.unflatten(2, (full, batch)).transpose(1, 2).flatten(1, 2))
        rest = steps - full * length
        if rest:
            last = by_channel[:, full * length :]
            y = torch.bmm(_toeplitz(within[:, :rest]), last) + torch.bmm(read[:, :rest], state)
            outputs.append(y)
            state = _carry(powers[..., rest].transpose(1, 2).unsqueeze(-1), state)
            state = state + torch.bmm(write[..., length - rest :], last)
        y = torch.cat(outputs, 1).permute(2, 1, 0)
        return y.to(u.dtype), state.unflatten(1, (2, -1)).permute(3, 0, 2, 1)


def _powers(log_decay, phase, length):
    """a^l for l = 0..C, (D, N, 2, C + 1)."""
    exponents = torch.arange(length + 1, device=phase.device, dtype=phase.dtype)
    size = (log_decay.unsqueeze(-1) * exponents).exp()
    # many turns: the float32 product would have lost what is left of them
    angle = torch.remainder(phase.double().unsqueeze(-1) * exponents, 2 * math.pi).to(phase.dtype)
    return torch.stack((size * angle.cos(), size * angle.sin()), 2)


def _times(x, y):
    """Product of complex numbers whose parts lie in axis 2."""
    (xr, xi), (yr, yi) = x.unbind(2), y.unbind(2)
    return torch.stack((xr * yr - xi * yi, xr * yi + xi * yr), 2)


def _carry(factor, state):
    """A state (D, 2 N, B), real parts first, times the factor (D, 2, N, 1)."""
    (fr, fi), (sr, si) = factor.unbind(1), state.chunk(2, 1)
    return torch.cat((fr * sr - fi * si, fr * si + fi * sr), 1)


def _toeplitz(kernel):
    """Lower triangular (D, C, C) with K_(i - j), from K (D, C)."""
    length = kernel.shape[1]
    return F.pad(kernel, (length - 1, 0)).unfold(1, length, 1).flip(2)
