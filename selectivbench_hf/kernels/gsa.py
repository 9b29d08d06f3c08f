"""Gated slot attention: two linear attentions that share their slots' writes and decays, with a softmax between them, in chunks.

    K_t = diag(exp(g_t)) K_{t-1} + s_t k_t^T,   V_t = diag(exp(g_t)) V_{t-1} + s_t v_t^T,   o_t = V_t^T softmax(scale K_t q_t)

(Zhang et al. 2024, arXiv:2409.07146; loop: reference_slots.py). The second step, with p = softmax(...) as queries and s as keys, is
gated linear attention (gla.py). The first is its transpose: the score of slot m is sum_j (q_t k_j) s_jm exp(g_{j+1,m} + ... + g_tm),
which is how the gradient of gated linear attention's queries is made, from q as the outputs' gradient and k as values. So one
recursive halving of the slots' writes serves both, their states are held side by side, and the backward pass reads and writes
through the same levels. No exponent is above 0 and nothing is divided (halving.py).

The gradient of the gates: dg_t = sum_{i >= t} p_i dp_i + r_i dr_i - s_i ds_i, r the scores before the softmax, plus <dS, S> at the end.
Axes: B batch, T time, H heads, K key channels, V value channels, S slots, N chunks, C steps of a chunk, M = B H.
"""

import torch

from .gla import LONGEST_CHUNK
from .layout import BlockView, chunk_length, compute_dtype, exact_backward, from_chunks, to_chunks
from .simple_gla import preferred_chunk


def gsa(q, k, v, s, g, scale=None, initial_state=None, chunk=None):
    """q, k (B, T, H, K); v (B, T, H, V); s what is written to the slots and g <= 0 their log decay (B, T, H, S). scale: 1/sqrt(K).

    initial_state: (B, H, K, S) of the keys and (B, H, S, V) of the values. Returns o (B, T, H, V) in v's type and the last states, a
    tuple like it in float32 (float64 if an input is).
    """
    scale = q.shape[-1] ** -0.5 if scale is None else scale
    chunk = chunk or preferred_chunk(s.shape[-1], k.shape[-1] + v.shape[-1], LONGEST_CHUNK)
    states = (None, None) if initial_state is None else initial_state
    out, *last = _GSA.apply(q, k, v, s, g, *states, scale, chunk_length(q.shape[1], chunk))
    return out, tuple(last)


class _Levels:
    """The halving of one chunk's writes (M, C, S) with decays (M, C, S): at each level the first halves' writes, carried to the halves'
    ends. `at_end` is the writes carried to the chunk's end, `over` (M, S) the decay over the chunk."""

    def __init__(self, writes, decay):
        self.levels, self.at_end, over, size = [], writes.clone(), decay, 1
        while size < writes.shape[1]:
            first = self._half(self.at_end, size, 0)
            over_first, over_second = over.view(-1, 2, 1, over.shape[-1]).unbind(1)
            self.levels.append((size, first.clone(), over_first, over_second))
            first.mul_(over_second)
            over = (over_first * over_second).squeeze(1)
            size *= 2
        self.over, self.writes, self.decay = over.view(-1, decay.shape[-1]), writes, decay

    @staticmethod
    def _half(x, size, which):
        """(M, C, S) -> the first or second block of each pair, (M pairs, s, S), a view."""
        return x.view(-1, 2, size, x.shape[-1])[:, which]

    def weights(self, reads, keep=None):
        """What each step's reads (M, C, S) weigh its own and each earlier write with (M, C, C), and the reads as the states before the
        chunk are read with. `keep` gets the reads at each level."""
        weights = torch.diag_embed(torch.linalg.vecdot(reads, self.writes))
        reads = reads * self.decay
        for size, first, over_first, _ in self.levels:
            second = self._half(reads, size, 1)
            # torch is slow to multiply matrices of one row
            products = torch.linalg.vecdot(second, first) if size == 1 else torch.bmm(second, first.transpose(1, 2))
            BlockView(weights, size).set_below(products)
            if keep is not None:
                keep.append(second.clone())
            second.mul_(over_first)
        return weights, reads

    def read(self, out, pairs):
        """To `out` (M, C, S), what the states before the chunk gave, the sum over j <= i of pairs_ij (M, C, C) times the decayed
        writes: in place."""
        for size, first, over_first, _ in reversed(self.levels):
            # not baddbmm_: into a strided result torch multiplies one matrix at a time
            _add_product(self._half(out, size, 1).mul_(over_first), BlockView(pairs, size).below, first)
        return out.mul_(self.decay).addcmul_(_diagonal(pairs), self.writes)

    def collect(self, out, *reads):
        """To `out` (M, C, S), what the states after the chunk gave, the rest of the gradient of the writes: in place. reads: tuples of
        the reads, the reads at each level, and their pairs (M, C, C)."""
        for level, (size, _, _, over_second) in reversed(list(enumerate(self.levels))):
            first = self._half(out, size, 0).mul_(over_second)
            for _, kept, pairs in reads:
                _add_product(first, BlockView(pairs, size).below.transpose(1, 2), kept[level])
        for values, _, pairs in reads:
            out.addcmul_(_diagonal(pairs), values)
        return out


def _add_product(x, block, y):
    """x + block y in place, (M, s, S) and (M, s, s)."""
    return x.addcmul_(block, y) if block.shape[-1] == 1 else x.add_(torch.bmm(block, y))


def _diagonal(pairs: torch.Tensor) -> torch.Tensor:
    """(M, C, C) -> (M, C, 1)."""
    return pairs.diagonal(dim1=1, dim2=2).unsqueeze(-1)


class _GSA(torch.autograd.Function):
    """One chunk after the other, so that the many passes over its numbers find them in the cache."""

    @staticmethod
    def forward(ctx, q, k, v, s, g, key_state, value_state, scale, length):
        dtype = compute_dtype(q, k, v, s, g, key_state, value_state)
        batch, steps, heads, keys = q.shape
        widths = keys, v.shape[3]
        slots = s.shape[3]
        with torch.autocast(q.device.type, enabled=False):
            qc, sc, decay = (to_chunks(x, length, dtype) for x in (q, s, g))
            both = qc.new_empty(*qc.shape[:4], sum(widths))
            for x, part in zip((k, v), both.split(widths, -1), strict=True):
                to_chunks(x, length, dtype, out=part)
            qc, sc, both, decay = (
                x.flatten(1, 2) for x in (qc.mul_(scale), sc, both, decay.exp_())
            )  # (N, B H, C, ...)
            chunks, count = qc.shape[:2]
            states = both.new_empty(chunks + 1, count, slots, sum(widths))
            for part, start in zip(states[0].split(widths, -1), (key_state, value_state), strict=True):
                part.zero_()
                if start is not None:
                    part.copy_((start.transpose(-1, -2) if start is key_state else start).flatten(0, 1))
            pairs, weights = (qc.new_empty(chunks, count, length, length) for _ in range(2))
            scores, reads = torch.empty_like(sc), torch.empty_like(sc)
            out = qc.new_empty(chunks, count, length, widths[1])
            for n in range(chunks):
                levels = _Levels(sc[n], decay[n])
                (k_n, v_n), (key_states, value_states) = both[n].split(widths, -1), states[n].split(widths, -1)
                torch.bmm(qc[n], k_n.transpose(1, 2), out=pairs[n])
                torch.bmm(qc[n], key_states.transpose(1, 2), out=scores[n])
                torch.softmax(levels.read(scores[n], pairs[n]), -1, out=reads[n])
                weights[n], reads_before = levels.weights(reads[n])
                torch.bmm(reads_before, value_states, out=out[n]).baddbmm_(weights[n], v_n)
                torch.mul(states[n], levels.over.unsqueeze(-1), out=states[n + 1])
                states[n + 1].baddbmm_(levels.at_end.transpose(1, 2), both[n])
            result = from_chunks(out.unflatten(1, (batch, heads)), steps, v.dtype)
            last_keys, last_values = states[-1].unflatten(0, (batch, heads)).split(widths, -1)
        ctx.save_for_backward(qc, both, sc, decay, states, pairs, scores, reads, weights)
        ctx.shapes = (batch, steps, heads, widths, scale)
        ctx.types = tuple(x.dtype for x in (q, k, v, s, g))
        ctx.initial = tuple(None if x is None else x.dtype for x in (key_state, value_state))
        return result, last_keys.transpose(-1, -2).contiguous(), last_values.clone()

    @staticmethod
    @exact_backward
    def backward(ctx, do, dlast_keys, dlast_values):
        qc, both, sc, decay, states, pairs, scores, reads, weights = ctx.saved_tensors
        batch, steps, heads, widths, scale = ctx.shapes
        chunks, _, length, _ = sc.shape
        doc = to_chunks(do, length, both.dtype).flatten(1, 2)
        dq, dboth, ds, dg = (torch.empty_like(x) for x in (qc, both, sc, decay))
        dstate = torch.cat((dlast_keys.transpose(-1, -2), dlast_values), -1).flatten(0, 1).to(both.dtype)
        later = (dstate * states[-1]).sum(-1)  # the gradient of the log decays that comes from after the chunk
        from_step = sc.new_ones(length, length).triu_().expand(len(dstate), -1, -1)
        for n in range(chunks - 1, -1, -1):
            levels = _Levels(sc[n], decay[n])  # again: cheaper than holding it between the two passes
            (k_n, v_n), (key_states, value_states) = both[n].split(widths, -1), states[n].split(widths, -1)
            reads_kept, scores_kept = [], []
            _, reads_before = levels.weights(reads[n], keep=reads_kept)
            dpairs = torch.bmm(doc[n], v_n.transpose(1, 2))
            dreads = levels.read(torch.bmm(doc[n], value_states.transpose(1, 2)), dpairs)
            dscores = torch.linalg.vecdot(dreads, reads[n]).unsqueeze(-1).neg().add(dreads).mul_(reads[n])
            key_weights, scores_before = levels.weights(dscores, keep=scores_kept)

            torch.bmm(scores_before, key_states, out=dq[n]).baddbmm_(key_weights, k_n)
            torch.bmm(levels.at_end, dstate, out=dboth[n])
            dk, dv = dboth[n].split(widths, -1)
            dk += torch.bmm(key_weights.transpose(1, 2), qc[n])
            dv += torch.bmm(weights[n].transpose(1, 2), doc[n])
            torch.bmm(both[n], dstate.transpose(1, 2), out=ds[n])
            levels.collect(ds[n], (reads[n], reads_kept, dpairs), (dscores, scores_kept, pairs[n]))
            per_step = torch.mul(reads[n], dreads).addcmul_(scores[n], dscores).addcmul_(sc[n], ds[n], value=-1)
            torch.bmm(from_step, per_step, out=dg[n]).add_(later.unsqueeze(1))
            later = dg[n, :, 0]

            dkeys, dvalues = dstate.mul_(levels.over.unsqueeze(-1)).split(widths, -1)
            dkeys += torch.bmm(scores_before.transpose(1, 2), qc[n])
            dvalues += torch.bmm(reads_before.transpose(1, 2), doc[n])

        dk, dv = dboth.split(widths, -1)
        gradients = [
            from_chunks(x.unflatten(1, (batch, heads)), steps, dtype)
            for x, dtype in zip((dq.mul_(scale), dk, dv, ds, dg), ctx.types, strict=True)
        ]
        dkeys, dvalues = dstate.unflatten(0, (batch, heads)).split(widths, -1)
        starts = zip((dkeys.transpose(-1, -2), dvalues), ctx.initial, strict=True)
        return *gradients, *(None if dtype is None else x.to(dtype) for x, dtype in starts), None, None
