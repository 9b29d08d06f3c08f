"""The gated delta rule in chunks, and its kin: products of Householders, no decay, and erasing before the decay (Comba).

    S_t = exp(g_t) (I - beta_t k_t k_t^T) S_{t-1} + beta_t k_t v_t^T,   o_t = scale * S_t^T q_t   (loops: reference.py, reference_delta.py)

Within a chunk, what each step writes is the solution of a unit lower triangular system (the WY form: Bischof & Van Loan 1987,
DeltaNet, Yang et al. 2024; with gates: Gated DeltaNet, 2024). With P = strict lower part of K K^T * D, M = (I + beta P)^-1 and
E = V - (e^G K) S, the writes are X = M (beta E), the outputs (e^G Q) S + (Q K^T * D) X, and the next state is
e^{G_C} S + (e^{G_C - G} K)^T X. Comba erases with a key of its own, before the decay: K^T S -> P^T S above and the rows of D and e^G
that belong to it are those of the step before.

The inverse is built by recursive halving down to single rows (block forward substitution): a power series would lose all digits for
nearly parallel keys. Its gradient has closed form: with Z = M^T dX, that of beta P is minus the strict lower part of Z X^T, and those
of E and beta follow row by row. Sums of decays are float64 and exponents above 0 masked before exp (see simple_gla.py). What belongs
to one chunk of the scan is done while its state is in the processor's cache.

Axes: B batch, T time, G key heads, H value heads, K key channels, V value channels, R writes a step (1, or Householders), N chunks,
P steps of a chunk, C = P R writes of a chunk, M = N B H.
"""

import torch
from torch.nn import functional as F

from .layout import BlockView, compute_dtype, exact_backward, from_chunks, suffix_sums, to_chunks
from .simple_gla import chunk_decays, preferred_chunk

LONGEST_CHUNK = 32  # more only adds levels of halving


def gated_delta(q, k, v, g, beta, scale=None, initial_state=None, chunk=None):
    """q, k (B, T, G, K); v (B, T, H, V), H a multiple of G; g (B, T, H) log decay <= 0 or None; beta (B, T, H).

    initial_state (B, H, K, V). Returns o (B, T, H, V) in v's type and the last state (B, H, K, V) in float32 (float64 if an input
    is). scale: 1/sqrt(K). The keys should have at most unit length, else the recurrence itself explodes.
    """
    return delta(q, k, None, v, g, beta, scale, initial_state, chunk)


def gated_delta_product(q, k, v, g, beta, num_householder, scale=None, initial_state=None, chunk=None):
    """R = num_householder writes a step (Siems et al. 2025): k (B, T R, G, K), v (B, T R, H, V) and beta (B, T R, H) in the order of
    the writes; q (B, T, G, K), g (B, T, H) or None. A step decays the state, writes R times, and is read. Returns as gated_delta."""
    if g is not None:
        g = F.pad(g.unsqueeze(2), (0, 0, 0, num_householder - 1)).flatten(1, 2)
    return delta(q, k, None, v, g, beta, scale, initial_state, chunk)


def delta(q, k, p, v, g, beta, scale=None, initial_state=None, chunk=None):
    """As gated_delta_product with g (B, T R, H). With p, like k: S_t = exp(g_t) S_{t-1} + beta_t k_t (v_t - S_{t-1}^T p_t)^T."""
    scale = q.shape[-1] ** -0.5 if scale is None else scale
    heads, each = v.shape[2], k.shape[1] // q.shape[1]
    if q.shape[2] != heads:
        q, k, p = (None if x is None else x.repeat_interleave(heads // x.shape[2], dim=2) for x in (q, k, p))
    chunk = chunk or preferred_chunk(k.shape[-1], v.shape[-1], LONGEST_CHUNK)
    steps = max(1, min(chunk // each, 1 << max(0, q.shape[1] - 1).bit_length()))
    return _Delta.apply(q, k, p, v, g, beta, initial_state, scale, steps)


def unit_lower_inverse(strict: torch.Tensor) -> torch.Tensor:
    """(I + A)^-1 for strictly lower triangular A (M, C, C), by halving down to single rows."""
    length = strict.shape[-1]
    more = (1 << (length - 1).bit_length()) - length
    if more:
        return unit_lower_inverse(F.pad(strict, (0, more, 0, more)))[:, :length, :length]
    inverse = torch.zeros_like(strict)
    inverse.diagonal(dim1=1, dim2=2).fill_(1)
    size = 1
    while size < length:
        below, blocks = BlockView(strict, size).below, BlockView(inverse, size)
        if size > 1:
            below = torch.bmm(blocks.second, torch.bmm(below, blocks.first))
        blocks.set_below(-below)  # not in place: `below` may be a view of `strict`
        size *= 2
    return inverse


class _Scaled:
    """Rows (M, C, D) times a factor (M, C, 1) or none, one chunk at a time in one piece of memory."""

    def __init__(self, rows, factor, chunks):
        self.rows = rows.unflatten(0, (chunks, -1))
        self.factor = None if factor is None else factor.unflatten(0, (chunks, -1))
        self.buffer = None if factor is None else torch.empty_like(self.rows[0])

    def __getitem__(self, n):
        return self.rows[n] if self.factor is None else torch.mul(self.rows[n], self.factor[n], out=self.buffer)


def _mask(matrices, decays, each):
    """Multiply what the last write of each step, (M, P, C), has of the writes before by the decays (M, P, C), or mask it in place."""
    if decays is not None:
        return matrices.mul_(decays)
    if each == 1:
        return matrices.tril_()
    steps = matrices.shape[1]
    later = torch.ones(steps, steps, dtype=torch.bool, device=matrices.device).triu(1).repeat_interleave(each, 1)
    return matrices.masked_fill_(later, 0)


def _decay_pairs(pairs, inside, early):
    """Multiply (M, C, C) by the decays between its rows and columns, or for `early` those up to the row before."""
    if inside is not None and early:
        pairs[:, 1:].mul_(inside[:, :-1])
    elif inside is not None:
        pairs.mul_(inside)
    return pairs.tril_(-1)


class _Delta(torch.autograd.Function):
    @staticmethod
    def forward(ctx, q, k, p, v, g, beta, initial_state, scale, steps):
        dtype = compute_dtype(q, k, p, v, g, beta, initial_state)
        batch, heads, keys, values = q.shape[0], q.shape[2], q.shape[3], v.shape[3]
        each = k.shape[1] // q.shape[1]
        length = steps * each
        with torch.autocast(q.device.type, enabled=False):
            qc = to_chunks(q, steps, dtype).flatten(0, 2).mul_(scale)  # (M, P, K)
            kc, errors = (to_chunks(x, length, dtype).flatten(0, 2) for x in (k, v))  # (M, C, K), (M, C, V)
            pc = kc if p is None else to_chunks(p, length, dtype).flatten(0, 2)
            bc = to_chunks(beta, length, dtype).flatten(0, 2).unsqueeze(-1)  # (M, C, 1)
            chunks = qc.shape[0] // (batch * heads)
            inside = read = enter = leave = over = None
            if g is not None:
                inside, enter, leave, over = chunk_decays(to_chunks(g, length, torch.float64).flatten(0, 2), dtype)
                read, enter, leave = (x.unsqueeze(-1) for x in (enter[:, each - 1 :: each], enter, leave))
                if p is not None:
                    enter = torch.cat((torch.ones_like(enter[:, :1]), enter[:, :-1]), 1)
                over = over.view(chunks, batch * heads, 1, 1)

            kt = kc.transpose(1, 2)
            pairs = _decay_pairs(torch.bmm(pc, kt), inside, p is not None)
            inverse = unit_lower_inverse(pairs * bc)
            weights = _mask(torch.bmm(qc, kt), None if g is None else inside[:, each - 1 :: each], each)

            def by_chunk(x):
                return x.unflatten(0, (chunks, -1))

            states = errors.new_empty(chunks + 1, batch * heads, keys, values)
            states[0].zero_() if initial_state is None else states[0].copy_(initial_state.flatten(0, 1))
            writes, out = torch.empty_like(errors), errors.new_empty(qc.shape[0], steps, values)
            entering, leaving, reading = (_Scaled(*pair, chunks) for pair in ((pc, enter), (kc, leave), (qc, read)))
            scan = zip(*map(by_chunk, (errors, writes, out, bc, inverse, weights)), strict=True)
            for n, (error, write, read_n, beta_n, inverse_n, weights_n) in enumerate(scan):
                error.baddbmm_(entering[n], states[n], alpha=-1)
                torch.bmm(inverse_n, error * beta_n, out=write)
                if over is None:
                    torch.baddbmm(states[n], leaving[n].transpose(1, 2), write, out=states[n + 1])
                else:
                    torch.mul(states[n], over[n], out=states[n + 1]).baddbmm_(leaving[n].transpose(1, 2), write)
                torch.bmm(reading[n], states[n], out=read_n).baddbmm_(weights_n, write)
            result = from_chunks(out.view(chunks, batch, heads, steps, values), q.shape[1], v.dtype)
        # what is one cheap product away is made again in the backward pass rather than held until then
        ctx.save_for_backward(
            qc, kc, pc, bc, inside, read, enter, leave, over, pairs, inverse, weights, states, errors, writes
        )
        ctx.shapes = (batch, heads, q.shape[1], k.shape[1], scale, p is not None)
        ctx.types = [None if x is None else x.dtype for x in (q, k, p, v, g, beta)]
        ctx.initial = None if initial_state is None else (initial_state.shape, initial_state.dtype)
        return result, states[-1].view(batch, heads, keys, values).clone()

    @staticmethod
    @exact_backward
    def backward(ctx, do, dlast):
        qc, kc, pc, bc, inside, read, enter, leave, over, pairs, inverse, weights, states, errors, writes = (
            ctx.saved_tensors
        )
        batch, heads, time, all_writes, scale, early = ctx.shapes
        each, gated = all_writes // time, over is not None
        steps, chunks = qc.shape[1], states.shape[0] - 1
        doc = to_chunks(do, steps, errors.dtype).flatten(0, 2)

        def by_chunk(x):
            return x.unflatten(0, (chunks, -1))

        # the scan backwards; `inner` is Z, and beta Z the gradient of the errors and so of v
        inner, dv, dq, dk, dp = (torch.empty_like(x) for x in (errors, errors, qc, kc, pc))
        carried = errors.new_empty(chunks, batch * heads) if gated else None
        dstate = dlast.flatten(0, 1).to(errors.dtype).clone()
        before, dwrite = torch.empty_like(dstate), torch.empty_like(by_chunk(errors)[0])
        entering, leaving, reading = (_Scaled(*pair, chunks) for pair in ((pc, enter), (kc, leave), (qc, read)))
        scan = list(zip(*map(by_chunk, (doc, inner, dv, dq, dk, dp, bc, inverse, weights, writes)), strict=True))
        for n in range(chunks - 1, -1, -1):
            do_n, inner_n, dv_n, dq_n, dk_n, dp_n, beta_n, inverse_n, weights_n, write = scan[n]
            state_t = states[n].transpose(1, 2)
            torch.bmm(weights_n.transpose(1, 2), do_n, out=dwrite).baddbmm_(leaving[n], dstate)
            torch.bmm(write, dstate.transpose(1, 2), out=dk_n)
            torch.bmm(inverse_n.transpose(1, 2), dwrite, out=inner_n)
            torch.mul(inner_n, beta_n, out=dv_n)
            torch.bmm(do_n, state_t, out=dq_n)
            torch.bmm(dv_n, state_t, out=dp_n)
            if gated:
                torch.linalg.vecdot(dstate.flatten(1), states[n].flatten(1), out=carried[n])
                dstate, before = torch.mul(dstate, over[n], out=before), dstate
            dstate.baddbmm_(reading[n].transpose(1, 2), do_n).baddbmm_(entering[n].transpose(1, 2), dv_n, alpha=-1)
        dp.neg_()

        writes_t = writes.transpose(1, 2)
        dweights = torch.bmm(doc, writes_t)
        dpairs = torch.bmm(inner, writes_t).neg_().tril_(-1)  # of beta P, so far
        dbeta = torch.linalg.vecdot(inner, errors).add_(torch.linalg.vecdot(dpairs, pairs))
        dpairs.mul_(bc)
        dg = None
        if gated:
            dq.mul_(read), dk.mul_(leave), dp.mul_(enter)
            # each product's gradient times the product, counted where its exponent begins and where it ends
            read_pairs, erase_pairs = dweights * weights, dpairs * pairs
            ending = erase_pairs.sum(-1).add_(torch.linalg.vecdot(dp, pc))
            leaving = torch.linalg.vecdot(dk, kc)
            dgates = erase_pairs.sum(-2).add_(read_pairs.sum(-2)).add_(leaving).neg_()
            if early:
                dgates[:, :-1].add_(ending[:, 1:])
            else:
                dgates.add_(ending)
            dgates[:, each - 1 :: each].add_(read_pairs.sum(-1).add_(torch.linalg.vecdot(dq, qc)))
            dgates[:, -1].add_(leaving.sum(-1)).add_(carried.mul_(over.view_as(carried)).flatten())
            dg = suffix_sums(dgates.double(), 1)

        _mask(dweights, inside[:, each - 1 :: each] if gated else None, each)
        _decay_pairs(dpairs, inside, early)
        dq.baddbmm_(dweights, kc).mul_(scale)
        dk.baddbmm_(dweights.transpose(1, 2), qc).baddbmm_(dpairs.transpose(1, 2), pc)
        dp.baddbmm_(dpairs, kc)
        if not early:
            dk.add_(dp)
            dp = None
        dinitial = None
        if ctx.initial is not None:
            shape, dtype = ctx.initial
            dinitial = dstate.view(shape).to(dtype)

        def unchunk(x, count, dtype):
            return None if x is None else from_chunks(x.view(chunks, batch, heads, *x.shape[1:]), count, dtype)

        gradients = (
            unchunk(x, time if x is dq else all_writes, dtype)
            for x, dtype in zip((dq, dk, dp, dv, dg, dbeta), ctx.types, strict=True)
        )
        return *gradients, dinitial, None, None
