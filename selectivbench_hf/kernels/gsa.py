"""Gated slot attention: two linear attentions that share their slots' writes and decays, with a softmax between them, in chunks.

    K_t = diag(exp(g_t)) K_{t-1} + s_t k_t^T,   V_t = diag(exp(g_t)) V_{t-1} + s_t v_t^T,   o_t = V_t^T softmax(scale K_t q_t)

(Zhang et al. 2024, arXiv:2409.07146; loop: reference_slots.py). The second step, with p = softmax(...) as queries and s as keys, is
gated linear attention (gla.py). The first is its transpose: the score of slot m is sum_j (q_t k_j) s_jm exp(g_{j+1,m} + ... + g_tm),
which is how the gradient of gated linear attention's queries is made, from q as the outputs' gradient and k as values. So one
recursive halving of the slots' writes serves both, their states are held side by side, and the backward pass reads and writes
through the same levels. No exponent is above 0 and nothing is divided (halving.py).

The gradient of the gates: dg_t = sum_{i >= t} p_i dp_i + r_i dr_i - s_i ds_i, r the scores before the softmax, plus <dS, S> at the end.
Axes: B batch, T time, H heads, K key channels, V value channels, S slots, N chunks, C steps of a chunk, M = N B H.
"""

import torch

from .gla import LONGEST_CHUNK
from .layout import BlockView, chunk_length, compute_dtype, from_chunks, suffix_sums, to_chunks
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
    """The halving of writes (M, C, S) with decays (M, C, S): at each level the first halves' writes, carried to the halves' ends.

    `at_end` is the writes carried to the chunk's end, `over` (M, S) the decay over the chunk.
    """

    def __init__(self, writes, decay):
        self.levels, self.at_end, over, size = [], writes.clone(), decay, 1
        while size < writes.shape[1]:
            first = self._half(self.at_end, size, 0)
            over_first, over_second = over.view(-1, 2, 1, over.shape[-1]).unbind(1)
            self.levels.append((size, first.clone(), over_first, over_second))
            first.mul_(over_second)
            over = (over_first * over_second).squeeze(1)
            size *= 2
        self.over, self.decay = over, decay

    @staticmethod
    def _half(x, size, which):
        """(M, C, S) -> the first or second block of each pair, (M pairs, s, S), a view."""
        return x.view(-1, 2, size, x.shape[-1])[:, which]

    def weights(self, reads, keep=False):
        """What each step's reads (M, C, S) weigh each earlier write with: (M, C, C), its diagonal empty; the reads as the states before
        the chunk are read with; and the reads at each level, if kept."""
        reads, kept = reads * self.decay, []
        weights = reads.new_zeros(*reads.shape[:2], reads.shape[1])
        for size, first, over_first, _ in self.levels:
            second = self._half(reads, size, 1)
            BlockView(weights, size).set_below(torch.bmm(second, first.transpose(1, 2)))
            if keep:
                kept.append(second.clone())
            second.mul_(over_first)
        return weights, reads, kept

    def read(self, out, pairs, writes):
        """From `out` (M, C, S), made with the states before the chunk, the sum over j <= i of pairs_ij (M, C, C) times the decayed
        writes: in place."""
        for size, first, over_first, _ in reversed(self.levels):
            # not baddbmm_: into a strided result torch multiplies one matrix at a time
            self._half(out, size, 1).mul_(over_first).add_(torch.bmm(BlockView(pairs, size).below, first))
        return out.mul_(self.decay).addcmul_(_diagonal(pairs), writes)

    def collect(self, out, *reads):
        """From `out` (M, C, S), made with the gradients of the states after the chunk, the gradient of the writes: in place. reads:
        tuples of the reads, the reads at each level, and their pairs (M, C, C)."""
        for level, (size, _, _, over_second) in reversed(list(enumerate(self.levels))):
            first = self._half(out, size, 0).mul_(over_second)
            for _, kept, pairs in reads:
                first.add_(torch.bmm(BlockView(pairs, size).below.transpose(1, 2), kept[level]))
        for values, _, pairs in reads:
            out.addcmul_(_diagonal(pairs), values)
        return out


def _diagonal(pairs: torch.Tensor) -> torch.Tensor:
    """(M, C, C) -> (M, C, 1)."""
    return pairs.diagonal(dim1=1, dim2=2).unsqueeze(-1)


class _GSA(torch.autograd.Function):
    @staticmethod
    def forward(ctx, q, k, v, s, g, key_state, value_state, scale, length):
        dtype = compute_dtype(q, k, v, s, g, key_state, value_state)
        batch, steps, heads, keys = q.shape
        values, slots = v.shape[3], s.shape[3]
        with torch.autocast(q.device.type, enabled=False):
            qc, sc, decay = (to_chunks(x, length, dtype) for x in (q, s, g))
            chunks = qc.shape[0]
            both = qc.new_empty(*qc.shape[:4], keys + values)
            to_chunks(k, length, dtype, out=both[..., :keys])
            to_chunks(v, length, dtype, out=both[..., keys:])
            qc, sc, both, decay = (x.flatten(0, 2) for x in (qc.mul_(scale), sc, both, decay.exp_()))
            kc, vc = both.split((keys, values), -1)
            levels = _Levels(sc, decay)

            states = both.new_empty(chunks + 1, batch * heads, slots, keys + values)
            for part, start in zip(states[0].split((keys, values), -1), (key_state, value_state), strict=True):
                part.zero_()
                if start is not None:
                    part.copy_((start.transpose(-1, -2) if start is key_state else start).flatten(0, 1))
            torch.bmm(levels.at_end.transpose(1, 2), both, out=states[1:].flatten(0, 1))
            over = levels.over.view(chunks, batch * heads, slots, 1)
            for n in range(chunks):
                states[n + 1].addcmul_(states[n], over[n])
            key_states, value_states = states[:-1].flatten(0, 1).split((keys, values), -1)

            pairs = torch.bmm(qc, kc.transpose(1, 2))
            scores = levels.read(torch.bmm(qc, key_states.transpose(1, 2)), pairs, sc)
            reads = scores.softmax(-1)
            weights, reads_before, _ = levels.weights(reads)
            weights.diagonal(dim1=1, dim2=2).copy_(torch.linalg.vecdot(reads, sc))
            out = torch.bmm(reads_before, value_states).baddbmm_(weights, vc)
            result = from_chunks(out.view(chunks, batch, heads, length, values), steps, v.dtype)
            last_keys, last_values = states[-1].view(batch, heads, slots, -1).split((keys, values), -1)
        ctx.save_for_backward(qc, both, sc, decay, states, pairs, scores, reads, weights)
        ctx.shapes = (batch, steps, heads, keys, values, scale)
        ctx.types = tuple(x.dtype for x in (q, k, v, s, g))
        ctx.initial = tuple(None if x is None else x.dtype for x in (key_state, value_state))
        return result, last_keys.transpose(-1, -2).contiguous(), last_values.clone()

    @staticmethod
    @torch.autograd.function.once_differentiable
    def backward(ctx, do, dlast_keys, dlast_values):
        qc, both, sc, decay, states, pairs, scores, reads, weights = ctx.saved_tensors
        batch, steps, heads, keys, values, scale = ctx.shapes
        count, length, slots = sc.shape
        chunks = count // (batch * heads)
        kc, vc = both.split((keys, values), -1)
        key_states, value_states = states[:-1].flatten(0, 1).split((keys, values), -1)
        doc = to_chunks(do, length, vc.dtype).flatten(0, 2)
        levels = _Levels(sc, decay)  # again: cheaper than holding it between the two passes

        _, reads_before, reads_kept = levels.weights(reads, keep=True)
        dpairs = torch.bmm(doc, vc.transpose(1, 2))
        dreads = levels.read(torch.bmm(doc, value_states.transpose(1, 2)), dpairs, sc)
        dscores = (dreads - torch.linalg.vecdot(dreads, reads).unsqueeze(-1)).mul_(reads)
        key_weights, scores_before, scores_kept = levels.weights(dscores, keep=True)
        key_weights.diagonal(dim1=1, dim2=2).copy_(torch.linalg.vecdot(dscores, sc))

        dstates = torch.empty_like(states)
        into = dstates[:-1].flatten(0, 1)
        into[..., :keys] = torch.bmm(scores_before.transpose(1, 2), qc)
        into[..., keys:] = torch.bmm(reads_before.transpose(1, 2), doc)
        dstates[-1, :, :, :keys] = dlast_keys.flatten(0, 1).transpose(-1, -2)
        dstates[-1, :, :, keys:] = dlast_values.flatten(0, 1)
        over = levels.over.view(chunks, batch * heads, slots, 1)
        for n in range(chunks - 1, -1, -1):
            dstates[n].addcmul_(dstates[n + 1], over[n])
        after = dstates[1:].flatten(0, 1)

        dq = torch.bmm(scores_before, key_states).baddbmm_(key_weights, kc).mul_(scale)
        dboth = torch.bmm(levels.at_end, after)
        dboth[..., :keys] += torch.bmm(key_weights.transpose(1, 2), qc)
        dboth[..., keys:] += torch.bmm(weights.transpose(1, 2), doc)
        ds = torch.bmm(both, after.transpose(1, 2))
        levels.collect(ds, (reads, reads_kept, dpairs), (dscores, scores_kept, pairs))

        per_step = torch.mul(reads, dreads).addcmul_(scores, dscores).addcmul_(sc, ds, value=-1)
        later = per_step.new_ones(length, length).triu_().expand(count, -1, -1)
        dg = torch.bmm(later, per_step).view(chunks, batch, heads, length, slots)
        end = (dstates[-1] * states[-1]).sum(-1).view(1, batch, heads, slots)
        dg += torch.cat((suffix_sums(dg[:, :, :, 0], 0)[1:], torch.zeros_like(end))).add_(end).unsqueeze(3)

        def unchunk(x, dtype):
            return from_chunks(x.view(chunks, batch, heads, length, -1), steps, dtype)

        dk, dv = dboth.view(chunks, batch, heads, length, -1).split((keys, values), -1)
        gradients = (dq, dk, dv, ds, dg)
        dkeys, dvalues = dstates[0].view(batch, heads, slots, -1).split((keys, values), -1)
        starts = zip((dkeys.transpose(-1, -2), dvalues), ctx.initial, strict=True)
        return (
            *(unchunk(x, dtype) for x, dtype in zip(gradients, ctx.types, strict=True)),
            *(None if dtype is None else x.to(dtype) for x, dtype in starts),
            None,
            None,
        )
