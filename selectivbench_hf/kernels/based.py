"""Linear attention whose weights are polynomials of q k: Based (Taylor's exp) and ReBased (squares), in chunks.

    o_i = sum_{j <= i} w_ij v_j / (sum_{j <= i} w_ij + eps),   w_ij = a + b s_ij + c s_ij^2,   s_ij = scale q_i k_j

(Arora et al. 2024, arXiv:2402.18668; Aksenov et al. 2024, arXiv:2402.10644; loop: reference_slots.py). Within a chunk the weights are made
from s, where a square cannot lose its sign. Across chunks they are products of features, 1, q and the products q_d q_e with d <= e, and
what was written lives in a state of as many rows: F = 1 + K + K (K + 1) / 2, or the last part alone where a = b = 0.

Axes: B batch, T time, H heads, K key channels, V value channels, F features, N chunks, C steps of a chunk, M = N B H.
"""

import torch

from .layout import chunk_length, compute_dtype, exact_backward, from_chunks, to_chunks

CHUNK = 64
TAYLOR, SQUARE = (1.0, 1.0, 0.5), (0.0, 0.0, 1.0)  # a, b, c


def based(q, k, v, scale=None, eps=1e-6, initial_state=None, chunk=None, want_state=True):
    """q, k (B, T, H, K); v (B, T, H, V); initial_state (B, H, F, V + 1), its last column the sum of weights. scale: 1/sqrt(K).

    Returns o (B, T, H, V) in v's type and the last state in float32 (float64 if an input is), or None without want_state. eps None: no
    normalisation.
    """
    return _normalised(q, k, v, TAYLOR, scale, eps, initial_state, chunk, want_state)


def rebased(q, k, v, scale=None, eps=1e-5, initial_state=None, chunk=None, want_state=True):
    """As based, for squares."""
    return _normalised(q, k, v, SQUARE, scale, eps, initial_state, chunk, want_state)


def features_of(keys: int, coefficients: tuple) -> int:
    """F for K key channels."""
    return keys * (keys + 1) // 2 + sum(n for n, c in zip((1, keys), coefficients, strict=False) if c)


def _normalised(q, k, v, coefficients, scale, eps, initial_state, chunk, want_state):
    scale = q.shape[-1] ** -0.5 if scale is None else scale
    length = chunk_length(q.shape[1], chunk or CHUNK)
    sums, last = _Polynomial.apply(q, k, v, initial_state, coefficients, scale, length, want_state)
    with torch.autocast(q.device.type, enabled=False):
        out = sums[..., :-1] if eps is None else sums[..., :-1] / (sums[..., -1:] + eps)
    return out.to(v.dtype), last


def _features(x, coefficients):
    """(M, C, K) -> (M, C, F): the products of two readers' features are the weights."""
    keys = x.shape[-1]
    out = x.new_empty(*x.shape[:-1], features_of(keys, coefficients))
    first = 0
    if coefficients[0]:
        out[..., 0] = coefficients[0] ** 0.5
        first = 1
    if coefficients[1]:
        torch.mul(x, coefficients[1] ** 0.5, out=out[..., first : first + keys])
        first += keys
    # sqrt(c) x_d^2, and sqrt(2 c) x_d x_e for each pair
    scaled = x * (2 * coefficients[2]) ** 0.5
    for d in range(keys):
        part = out[..., first : first + keys - d]
        torch.mul(scaled[..., d:], x[..., d : d + 1], out=part)
        part[..., 0] *= 0.5**0.5
        first += keys - d
    return out


def _features_back(dfeatures, x, coefficients):
    """The gradient of x from that of its features."""
    keys = x.shape[-1]
    first = int(bool(coefficients[0]))
    dx = torch.zeros_like(x)
    if coefficients[1]:
        dx.add_(dfeatures[..., first : first + keys], alpha=coefficients[1] ** 0.5)
        first += keys
    scaled = x * (2 * coefficients[2]) ** 0.5
    for d in range(keys):
        part = dfeatures[..., first : first + keys - d]
        dx[..., d] += torch.linalg.vecdot(part[..., 1:], scaled[..., d + 1 :])
        dx[..., d] += part[..., 0] * scaled[..., d] * 2**0.5
        dx[..., d + 1 :] += part[..., 1:] * scaled[..., d : d + 1]
        first += keys - d
    return dx


class _Polynomial(torch.autograd.Function):
    """The sums of w v and, as a last column, of w."""

    @staticmethod
    def forward(ctx, q, k, v, initial_state, coefficients, scale, length, want_state):
        dtype = compute_dtype(q, k, v, initial_state)
        batch, steps, heads, _ = q.shape
        a, b, c = coefficients
        with torch.autocast(q.device.type, enabled=False):
            qc, kc = (to_chunks(x, length, dtype).flatten(0, 2) for x in (q, k))
            qc.mul_(scale)
            chunks = len(qc) // (batch * heads)
            vc = qc.new_zeros(chunks, batch, heads, length, v.shape[3] + 1)
            to_chunks(v, length, dtype, out=vc[..., :-1])
            vc[..., -1] = 1
            if steps % length:
                vc[-1, :, :, steps % length :, -1] = 0  # what is not a step adds no weight
            vc = vc.flatten(0, 2)
            scores = torch.bmm(qc, kc.transpose(1, 2))
            out = torch.bmm((scores * c).add_(b).mul_(scores).add_(a).tril_(), vc)
            states = last = None
            if (
                chunks > 1 or initial_state is not None or want_state
            ):  # else there is nothing to carry, and features are wide
                last = qc.new_zeros(batch * heads, features_of(q.shape[-1], coefficients), vc.shape[-1])
                if initial_state is not None:
                    last.copy_(initial_state.flatten(0, 1))
                read, written = _features(qc, coefficients), _features(kc, coefficients)
                sums = torch.bmm(written.transpose(1, 2), vc).view(chunks, *last.shape)
                states = torch.empty_like(sums)
                for n in range(chunks):
                    states[n] = last
                    last += sums[n]
                out.baddbmm_(read, states.flatten(0, 1))
                last = last.view(batch, heads, *last.shape[1:])
            result = from_chunks(out.view(chunks, batch, heads, length, -1), steps, dtype)
        ctx.save_for_backward(qc, kc, vc, states)
        ctx.shapes = (batch, steps, heads, coefficients, scale)
        ctx.types = (q.dtype, k.dtype, v.dtype)
        ctx.initial = None if initial_state is None else (initial_state.shape, initial_state.dtype)
        return result, last

    @staticmethod
    @exact_backward
    def backward(ctx, dout, dlast):
        qc, kc, vc, states = ctx.saved_tensors
        batch, steps, heads, coefficients, scale = ctx.shapes
        a, b, c = coefficients
        length, chunks = qc.shape[1], len(qc) // (batch * heads)
        doc = to_chunks(dout, length, vc.dtype).flatten(0, 2)
        scores = torch.bmm(qc, kc.transpose(1, 2))
        dv = torch.bmm((scores * c).add_(b).mul_(scores).add_(a).tril_().transpose(1, 2), doc)
        dscores = torch.bmm(doc, vc.transpose(1, 2)).mul_(scores.mul_(2 * c).add_(b)).tril_()
        dq, dk, dinitial = torch.bmm(dscores, kc), torch.bmm(dscores.transpose(1, 2), qc), None
        if states is not None:
            read, written = _features(qc, coefficients), _features(kc, coefficients)  # again: they are wide
            dstates = torch.bmm(read.transpose(1, 2), doc).view(states.shape)
            after = torch.empty_like(dstates)
            total = torch.zeros_like(states[0]) if dlast is None else dlast.flatten(0, 1).clone()
            for n in range(chunks - 1, -1, -1):
                after[n] = total
                total += dstates[n]
            states, after = states.flatten(0, 1), after.flatten(0, 1)
            dv.baddbmm_(written, after)
            dq += _features_back(torch.bmm(doc, states.transpose(1, 2)), qc, coefficients)
            dk += _features_back(torch.bmm(vc, after.transpose(1, 2)), kc, coefficients)
            if ctx.initial is not None:
                shape, dtype = ctx.initial
                dinitial = total.view(shape).to(dtype)

        def unchunk(x, dtype):
            return from_chunks(x.view(chunks, batch, heads, length, -1), steps, dtype)

        gradients = (dq.mul_(scale), dk, dv[..., :-1])
        return (*(unchunk(x, t) for x, t in zip(gradients, ctx.types, strict=True)), dinitial, None, None, None, None)
