"""Gated linear attention: one decay per key channel, in chunks.

    S_t = diag(exp(g_t)) S_{t-1} + k_t v_t^T,   o_t = scale * S_t^T q_t                              (loop: reference.py)

Inside a chunk the weight of step j on step i is A_ij = sum_d q_id k_jd a_{j+1,d} ... a_{i,d}, a = exp(g): not a plain product, and
dividing cumulative products is what breaks for strong decays. Recursive halving needs no division and no exponent above 0: at block
size s = 1, 2, 4, ..., for i in the second and j in the first half of a pair of blocks the weight is (decays from the block's start
to i) times (decays after j to its block's end). Both factors grow with s by multiplying with whole-block products, and at s = C
they are what the states across chunks need. Gates of 0 and of -1e4 are equally exact.

The gradient of the gates needs no states: dg_t = sum_{i >= t} q_i dq_i - k_i dk_i, plus <dS, S> at the end (Yang et al. 2023).
Axes: B batch, T time, H heads, K key channels, V value channels, N chunks, C steps of a chunk, M = N B H.
"""

import torch

from .layout import BlockView, chunk_length, compute_dtype, from_chunks, suffix_sums, to_chunks
from .simple_gla import preferred_chunk

LONGEST_CHUNK = 32  # more only adds levels of halving


def gla(q, k, v, g, scale=None, initial_state=None, chunk=None):
    """q, k, g (B, T, H, K), g <= 0 log decay; v (B, T, H, V); initial_state (B, H, K, V). scale: 1/sqrt(K).

    Returns o (B, T, H, V) in v's type and the last state (B, H, K, V) in float32 (float64 if an input is).
    """
    scale = q.shape[-1] ** -0.5 if scale is None else scale
    return _GLA.apply(
        q,
        k,
        v,
        g,
        initial_state,
        scale,
        chunk_length(q.shape[1], chunk or preferred_chunk(q.shape[-1], v.shape[-1], LONGEST_CHUNK)),
    )


class _Halving:
    """The sweep over block sizes for queries, keys and decays (M, C, K)."""

    def __init__(self, q, k, decay):
        self.queries, self.keys, self.over = q * decay, k, decay
        self.size, self.length = 1, q.shape[1]

    def pairs(self, x):
        """(M, C, K) as (M * pairs, 2, s, K)."""
        return x.view(-1, 2, self.size, x.shape[-1])

    def step(self):
        """Go from block size s to 2 s; returns the decay over the first and the second block of each pair, (M * pairs, 1, K)."""
        first, second = self.over.view(-1, 2, self.over.shape[-1]).unbind(1)
        self.over = first * second
        self.size *= 2
        return first.unsqueeze(1), second.unsqueeze(1)


class _GLA(torch.autograd.Function):
    @staticmethod
    def forward(ctx, q, k, v, g, initial_state, scale, length):
        dtype = compute_dtype(q, k, v, g, initial_state)
        batch, steps, heads, keys = q.shape
        values = v.shape[3]
        with torch.autocast(q.device.type, enabled=False):
            qc, kc, vc, decay = (to_chunks(x, length, dtype) for x in (q, k, v, g))
            chunks = qc.shape[0]
            qc, kc, vc, decay = (x.flatten(0, 2) for x in (qc.mul_(scale), kc, vc, decay.exp_()))
            weights = torch.diag_embed(torch.linalg.vecdot(qc, kc))
            sweep = _Halving(qc, kc.clone(), decay)
            while sweep.size < length:
                size = sweep.size
                second, first = sweep.pairs(sweep.queries)[:, 1], sweep.pairs(sweep.keys)[:, 0]
                BlockView(weights, size).set_below(torch.bmm(second, first.transpose(1, 2)))
                over_first, over_second = sweep.step()
                second.mul_(over_first)
                first.mul_(over_second)
            over = sweep.over.view(chunks, batch * heads, keys, 1)

            states = vc.new_empty(chunks + 1, batch * heads, keys, values)
            states[0].zero_() if initial_state is None else states[0].copy_(initial_state.flatten(0, 1))
            torch.bmm(sweep.keys.transpose(1, 2), vc, out=states[1:].flatten(0, 1))
            for n in range(chunks):
                states[n + 1].addcmul_(states[n], over[n])
            out = torch.bmm(sweep.queries, states[:-1].flatten(0, 1)).baddbmm_(weights, vc)
            result = from_chunks(out.view(chunks, batch, heads, length, values), steps, v.dtype)
        ctx.save_for_backward(qc, kc, vc, decay, weights, states)
        ctx.shapes = (batch, steps, heads, scale, q.dtype, k.dtype, v.dtype, g.dtype)
        ctx.initial = None if initial_state is None else (initial_state.shape, initial_state.dtype)
        return result, states[-1].view(batch, heads, keys, values).clone()

    @staticmethod
    @torch.autograd.function.once_differentiable
    def backward(ctx, do, dlast):
        qc, kc, vc, decay, weights, states = ctx.saved_tensors
        batch, steps, heads, scale, q_type, k_type, v_type, g_type = ctx.shapes
        length, keys = qc.shape[1:]
        chunks = states.shape[0] - 1
        doc = to_chunks(do, length, vc.dtype).flatten(0, 2)

        # the sweep again, now keeping what each level multiplied: cheaper than holding it between the two passes
        sweep, levels = _Halving(qc, kc.clone(), decay), []
        while sweep.size < length:
            size = sweep.size
            second, first = sweep.pairs(sweep.queries)[:, 1], sweep.pairs(sweep.keys)[:, 0]
            kept = second.clone(), first.clone()
            over_first, over_second = sweep.step()
            second.mul_(over_first)
            first.mul_(over_second)
            levels.append((size, *kept, over_first, over_second))
        over = sweep.over.view(chunks, batch * heads, keys, 1)

        dstates = torch.empty_like(states)
        torch.bmm(sweep.queries.transpose(1, 2), doc, out=dstates[:-1].flatten(0, 1))
        dstates[-1].copy_(dlast.flatten(0, 1))
        for n in range(chunks - 1, -1, -1):
            dstates[n].addcmul_(dstates[n + 1], over[n])
        after = dstates[1:].flatten(0, 1)

        dv = torch.bmm(sweep.keys, after).baddbmm_(weights.transpose(1, 2), doc)
        dq = torch.bmm(doc, states[:-1].flatten(0, 1).transpose(1, 2))
        dk = torch.bmm(vc, after.transpose(1, 2))
        dweights = torch.bmm(doc, vc.transpose(1, 2))
        for size, queries, keys_before, over_first, over_second in reversed(levels):
            block = BlockView(dweights, size).below
            second, first = dq.view(-1, 2, size, keys)[:, 1], dk.view(-1, 2, size, keys)[:, 0]
            # not baddbmm_: into a strided result torch multiplies one matrix at a time
            second.mul_(over_first).add_(torch.bmm(block, keys_before))
            first.mul_(over_second).add_(torch.bmm(block.transpose(1, 2), queries))
        diagonal = dweights.diagonal(dim1=1, dim2=2).unsqueeze(-1)
        dq.mul_(decay).addcmul_(diagonal, kc)
        dk.addcmul_(diagonal, qc)

        per_step = torch.mul(qc, dq).sub_(kc * dk)
        later = per_step.new_ones(length, length).triu_().expand(per_step.shape[0], -1, -1)
        dg = torch.bmm(later, per_step).view(chunks, batch, heads, length, keys)
        end = (dstates[-1] * states[-1]).sum(-1).view(1, batch, heads, keys)
        of_later_chunks = torch.cat((suffix_sums(dg[:, :, :, 0], 0)[1:], torch.zeros_like(end))).add_(end)
        dg += of_later_chunks.unsqueeze(3)
        dinitial = None
        if ctx.initial is not None:
            shape, dtype = ctx.initial
            dinitial = dstates[0].view(shape).to(dtype)

        def unchunk(x, dtype):
            return from_chunks(x.view(chunks, batch, heads, length, -1), steps, dtype)

        return (
            unchunk(dq.mul_(scale), q_type),
            unchunk(dk, k_type),
            unchunk(dv, v_type),
            unchunk(dg, g_type),
            dinitial,
            None,
            None,
        )
