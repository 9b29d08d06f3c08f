"""The selective scan compiled by numba: see scan.py. Importing this module imports numba; the first call compiles (once for a machine).

A task is one sequence and a share of its channels, BLOCK channels at a time, whose states stay in the cache. Tasks run
in plain threads (numba's lock-free mode), as many as torch uses: numba's own parallel mode compiles five times as long, and its OpenMP
does not survive a fork. Shares depend on the shape alone, so that sums are the same for any number of threads.

Axes: B batch, T time, D channels, N state channels.
"""

import concurrent.futures
import sys
import threading

import numba
import numpy as np
import torch

from .scan import LENGTH

BLOCK = 128  # channels of the inner loop: fewer, and checking that arrays do not overlap takes longer than the loop
TASKS = 16  # about how many there are, for small batches
PATIENCE = 3.0  # seconds before compiling is explained

_ran: set = set()  # tasks that have run in this process

LOWEST = np.float32(-87.0)  # exp of less is below the normal numbers of float32
LOG2E = np.float32(1.4426950408889634)
# 2^f on [-1/2, 1/2] to 5e-9 relative: 1 + f (polynomial through Chebyshev nodes)
P1, P2, P3 = np.float32(6.93147188e-01), np.float32(2.40226509e-01), np.float32(5.55035710e-02)
P4, P5, P6 = np.float32(9.61805667e-03), np.float32(1.33908674e-03), np.float32(1.54614475e-04)
ONE, HALF = np.float32(1), np.float32(0.5)


def _compile(function, **options):
    """numba's compiler, keeping what it made beside the package or in the user's cache folder; where neither can be written, in memory."""
    options = {"fastmath": True, "nogil": True, **options}
    try:
        return numba.njit(function, cache=True, **options)
    except RuntimeError:  # no folder to keep it in
        return numba.njit(function, **options)


def _exp_(x):
    """exp(x) for x <= 0: plain arithmetic, which the compiler can do for many channels at once (it cannot for the library's exp)."""
    x = max(x, LOWEST) * LOG2E
    whole = np.floor(x + HALF)
    f = x - whole
    p = ONE + f * (P1 + f * (P2 + f * (P3 + f * (P4 + f * (P5 + f * P6)))))
    return p * np.int32((np.int32(whole) + np.int32(127)) << np.int32(23)).view(np.float32)


_exp = _compile(_exp_, inline="always")


def _forward_task(length, u, dt, A, key, query, kept, y, b, first, last):
    steps, states = u.shape[1], A.shape[0]
    state = np.empty((states, BLOCK), np.float32)
    for d0 in range(first, last, BLOCK):
        width = min(BLOCK, last - d0)
        state[:, :width] = kept[b, 0, :, d0 : d0 + width]
        for t in range(steps):
            if t % length == 0:
                kept[b, t // length, :, d0 : d0 + width] = state[:, :width]
            ub, dtb, yb = u[b, t, d0 : d0 + width], dt[b, t, d0 : d0 + width], y[b, t, d0 : d0 + width]
            yb[:] = 0
            for n in range(states):
                k, q = key[b, t, n], query[b, t, n]
                s, a = state[n], A[n, d0 : d0 + width]
                for j in range(width):
                    value = _exp(dtb[j] * a[j]) * s[j] + ub[j] * k
                    s[j] = value
                    yb[j] += value * q
        kept[b, -1, :, d0 : d0 + width] = state[:, :width]


def _backward_task(length, u, dt, A, key, query, kept, dy, dstate, du, ddt, dA, dkey, dquery, b, share, first, last):
    steps, states = u.shape[1], A.shape[0]
    run = np.empty((length + 1, states, BLOCK), np.float32)
    decay = np.empty((length, states, BLOCK), np.float32)
    for d0 in range(first, last, BLOCK):
        width = min(BLOCK, last - d0)
        for span in range((steps - 1) // length, -1, -1):
            t0 = span * length
            count = min(length, steps - t0)
            run[0, :, :width] = kept[b, span, :, d0 : d0 + width]
            for i in range(count):
                ub, dtb = u[b, t0 + i, d0 : d0 + width], dt[b, t0 + i, d0 : d0 + width]
                for n in range(states):
                    k, a = key[b, t0 + i, n], A[n, d0 : d0 + width]
                    before, now, e = run[i, n], run[i + 1, n], decay[i, n]
                    for j in range(width):
                        e[j] = _exp(dtb[j] * a[j])
                        now[j] = e[j] * before[j] + ub[j] * k
            for i in range(count - 1, -1, -1):
                t = t0 + i
                ub, dtb, dyb = u[b, t, d0 : d0 + width], dt[b, t, d0 : d0 + width], dy[b, t, d0 : d0 + width]
                dub, ddtb = du[b, t, d0 : d0 + width], ddt[b, t, d0 : d0 + width]
                dub[:] = 0
                ddtb[:] = 0
                for n in range(states):
                    k, q, a = key[b, t, n], query[b, t, n], A[n, d0 : d0 + width]
                    before, now, e = run[i, n], run[i + 1, n], decay[i, n]
                    later, da = dstate[b, n, d0 : d0 + width], dA[b, n, d0 : d0 + width]
                    to_key, to_query = np.float32(0), np.float32(0)
                    for j in range(width):
                        g = later[j] + dyb[j] * q
                        to_query += dyb[j] * now[j]
                        to_key += g * ub[j]
                        dub[j] += g * k
                        g *= e[j]
                        later[j] = g
                        g *= before[j]
                        ddtb[j] += g * a[j]
                        da[j] += g * dtb[j]
                    dkey[share, b, t, n] += to_key
                    dquery[share, b, t, n] += to_query


_forward_task = _compile(_forward_task)
_backward_task = _compile(_backward_task)


def _shares(batch: int, width: int) -> list[tuple[int, int]]:
    """First and last channel of each share of D, whole blocks."""
    blocks = -(-width // BLOCK)
    each = -(-blocks // max(1, min(blocks, TASKS // batch))) * BLOCK
    return [(first, min(first + each, width)) for first in range(0, width, each)]


def _run(task, arguments: list[tuple]) -> None:
    # the first call in a process compiles, unless it finds what an earlier one kept: say so if that takes long
    word = threading.Timer(
        PATIENCE, print, ["compiling Mamba's scan for this machine, once ..."], {"file": sys.stderr}
    )
    word.daemon = True
    if task not in _ran:
        word.start()
    try:
        threads = min(torch.get_num_threads(), len(arguments))
        if threads == 1:
            for each in arguments:
                task(*each)
        else:
            with concurrent.futures.ThreadPoolExecutor(threads) as pool:
                list(pool.map(lambda each: task(*each), arguments))
    finally:
        word.cancel()
    _ran.add(task)


def forward(u, dt, A, B, C, kept, y) -> None:
    """float32, contiguous; A (N, D). Fills kept[:, 1:] (B, spans, N, D) and y (B, T, D)."""
    arrays = [x.detach().numpy() for x in (u, dt, A, B, C, kept, y)]
    shares = _shares(u.shape[0], u.shape[2])
    _run(_forward_task, [(LENGTH, *arrays, b, *share) for b in range(u.shape[0]) for share in shares])


def backward(u, dt, A, B, C, kept, dy, dstate):
    """Gradients of u, dt, A, B, C; dstate (B, N, D) is that of the last state and becomes that of the first."""
    batch, steps, width = u.shape
    shares = _shares(batch, width)
    du, ddt = torch.empty_like(u), torch.empty_like(dt)
    dA = u.new_zeros(batch, *A.shape)
    dB, dC = (u.new_zeros(len(shares), batch, steps, A.shape[0]) for _ in range(2))
    arrays = [x.detach().numpy() for x in (u, dt, A, B, C, kept, dy, dstate, du, ddt, dA, dB, dC)]
    tasks = [(LENGTH, *arrays, b, index, *share) for b in range(batch) for index, share in enumerate(shares)]
    _run(_backward_task, tasks)
    return du, ddt, dA.sum(0), dB.sum(0), dC.sum(0)
