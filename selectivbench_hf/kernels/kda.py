"""Kimi Delta Attention: the delta rule with one decay per key channel, in chunks.

    S' = diag(exp(g_t)) S_{t-1},   S_t = S' + beta_t k_t (v_t - S'^T k_t)^T,   o_t = scale * S_t^T q_t

(loop: reference_generalized.py; Kimi Linear, Moonshot AI 2025, arXiv:2510.26692). As in gated_delta.py, with both matrices over pairs
of steps, Q-K and beta K-K, from the recursive halving of halving.py in one sweep: queries and keys are the two readers, keys the
writer. The gradient of the gates needs no states: whatever reads at step i scales with the decays up to i, whatever is written at j
with those after j, so dg_t = sum_{i >= t} q_i dq_i + k_i (dk_i as reader - dk_i as writer), plus <dS, S> at the end.

Axes: B batch, T time, G key heads, H value heads, K key channels, V value channels, N chunks, C steps of a chunk, M = N B H.
"""

import torch

from .gated_delta import LONGEST_CHUNK, unit_lower_inverse
from .halving import halve, halve_back
from .layout import chunk_length, compute_dtype, from_chunks, suffix_sums, to_chunks
from .simple_gla import preferred_chunk

QUERY, KEY = 0, 1  # the readers


def kda(q, k, v, g, beta, scale=None, initial_state=None, chunk=None):
    """q, k (B, T, G, K); v (B, T, H, V), H a multiple of G; g (B, T, H, K) log decay <= 0; beta (B, T, H).

    initial_state (B, H, K, V). Returns o (B, T, H, V) in v's type and the last state (B, H, K, V) in float32 (float64 if an input
    is). scale: 1/sqrt(K). The keys should have at most unit length, else the recurrence itself explodes.
    """
    scale = q.shape[-1] ** -0.5 if scale is None else scale
    heads = v.shape[2]
    if q.shape[2] != heads:
        q, k = (x.repeat_interleave(heads // x.shape[2], dim=2) for x in (q, k))
    chunk = chunk or preferred_chunk(q.shape[-1], v.shape[-1], LONGEST_CHUNK)
    return _KDA.apply(q, k, v, g, beta, initial_state, scale, chunk_length(q.shape[1], chunk))


class _KDA(torch.autograd.Function):
    @staticmethod
    def forward(ctx, q, k, v, g, beta, initial_state, scale, length):
        dtype = compute_dtype(q, k, v, g, beta, initial_state)
        batch, steps, heads, keys = q.shape
        values = v.shape[3]
        with torch.autocast(q.device.type, enabled=False):
            vc = to_chunks(v, length, dtype).flatten(0, 2)  # (M, C, V)
            bc = to_chunks(beta, length, dtype).flatten(0, 2).unsqueeze(-1)  # (M, C, 1)
            decay = to_chunks(g, length, dtype).flatten(0, 2).exp_()  # (M, C, K)
            count = len(vc)
            chunks = count // (batch * heads)
            qk = vc.new_empty(chunks, batch, heads, length, 2, keys)
            to_chunks(q, length, dtype, out=qk[..., QUERY, :]).mul_(scale)
            to_chunks(k, length, dtype, out=qk[..., KEY, :])
            qk = qk.flatten(0, 2)  # (M, C, 2, K)

            weights = vc.new_zeros(count, length, 2, length)
            weights[:, :, QUERY].diagonal(dim1=1, dim2=2).copy_(torch.linalg.vecdot(qk[:, :, QUERY], qk[:, :, KEY]))
            readers, writers = qk * decay.unsqueeze(2), qk[:, :, KEY:].clone()
            over, _ = halve(readers, writers, decay, weights.view(count, 2 * length, length))
            over, key_out = over.view(chunks, -1, keys, 1), writers.view(chunks, -1, length, keys).transpose(2, 3)

            inverse = unit_lower_inverse(weights[:, :, KEY] * bc)
            w, u = torch.bmm(inverse, readers[:, :, KEY] * bc), torch.bmm(inverse, vc * bc)
            states = vc.new_empty(chunks + 1, batch * heads, keys, values)
            states[0].zero_() if initial_state is None else states[0].copy_(initial_state.flatten(0, 1))
            writes, w_n = u.view(chunks, -1, length, values), w.view(chunks, -1, length, keys)
            for n in range(chunks):
                writes[n].baddbmm_(w_n[n], states[n], alpha=-1)
                torch.mul(states[n], over[n], out=states[n + 1]).baddbmm_(key_out[n], writes[n])
            writes = writes.view(-1, length, values)
            out = torch.bmm(readers[:, :, QUERY], states[:-1].flatten(0, 1)).baddbmm_(weights[:, :, QUERY], writes)
            result = from_chunks(out.view(chunks, batch, heads, length, values), steps, v.dtype)
        ctx.save_for_backward(qk, vc, bc, decay, weights, inverse, w, states, writes)
        ctx.shapes = (batch, steps, heads, scale, q.dtype, k.dtype, v.dtype, g.dtype, beta.dtype)
        ctx.initial = None if initial_state is None else (initial_state.shape, initial_state.dtype)
        return result, states[-1].view(batch, heads, keys, values).clone()

    @staticmethod
    @torch.autograd.function.once_differentiable
    def backward(ctx, do, dlast):
        qk, vc, bc, decay, weights, inverse, w, states, writes = ctx.saved_tensors
        batch, steps, heads, scale, q_type, k_type, v_type, g_type, beta_type = ctx.shapes
        count, length, _, keys = qk.shape
        chunks, values = states.shape[0] - 1, states.shape[-1]
        doc = to_chunks(do, length, vc.dtype).flatten(0, 2)
        before_t = states[:-1].flatten(0, 1).transpose(1, 2)
        # the sweep again, now keeping what each level multiplied: cheaper than holding it between the two passes
        readers, writers = qk * decay.unsqueeze(2), qk[:, :, KEY:].clone()
        over, levels = halve(readers, writers, decay, keep=True)
        over, key_out = over.view(chunks, -1, keys, 1), writers.view(chunks, -1, length, keys)

        # the scan backwards: dwrites is also the gradient of u, and minus it, times the state, that of w
        dwrites = torch.bmm(weights[:, :, QUERY].transpose(1, 2), doc).view(chunks, -1, length, values)
        dstates = torch.empty_like(states)
        torch.bmm(readers[:, :, QUERY].transpose(1, 2), doc, out=dstates[:-1].flatten(0, 1))
        dstates[-1].copy_(dlast.flatten(0, 1))
        w_t = w.view(chunks, -1, length, keys).transpose(2, 3)
        for n in range(chunks - 1, -1, -1):
            dwrites[n].baddbmm_(key_out[n], dstates[n + 1])
            dstates[n].addcmul_(dstates[n + 1], over[n]).baddbmm_(w_t[n], dwrites[n], alpha=-1)
        dwrites = dwrites.view(-1, length, values)

        inverse_t = inverse.transpose(1, 2)
        dvalue_in = torch.bmm(inverse_t, dwrites)
        dkey_in = torch.bmm(inverse_t, torch.bmm(dwrites, before_t)).neg_()
        u = torch.baddbmm(writes, w, before_t.transpose(1, 2))
        dstrict = torch.bmm(dvalue_in, u.transpose(1, 2)).baddbmm_(dkey_in, w.transpose(1, 2)).tril_(-1).neg_()
        # beta multiplies the rows of the strict part, as it does those of the keys and values
        dbeta = torch.linalg.vecdot(dstrict, weights[:, :, KEY])
        dbeta.add_(torch.linalg.vecdot(dkey_in, readers[:, :, KEY])).add_(torch.linalg.vecdot(dvalue_in, vc))
        dv = dvalue_in.mul_(bc)

        dweights = torch.empty_like(weights)
        dweights[:, :, QUERY] = torch.bmm(doc, writes.transpose(1, 2))
        torch.mul(dstrict, bc, out=dweights[:, :, KEY])
        dreaders = torch.empty_like(qk)
        dreaders[:, :, QUERY] = torch.bmm(doc, before_t)
        torch.mul(dkey_in, bc, out=dreaders[:, :, KEY])
        dwriters = torch.bmm(writes, dstates[1:].flatten(0, 1).transpose(1, 2))
        halve_back(dreaders, dwriters.unsqueeze(2), dweights.view(count, 2 * length, length), levels)
        dreaders.mul_(decay.unsqueeze(2))
        diagonal = dweights[:, :, QUERY].diagonal(dim1=1, dim2=2).unsqueeze(-1)
        dreaders[:, :, QUERY].addcmul_(diagonal, qk[:, :, KEY])
        dwriters.addcmul_(diagonal, qk[:, :, QUERY])

        per_step = (qk * dreaders).sum(2).addcmul_(qk[:, :, KEY], dwriters, value=-1)
        later = per_step.new_ones(length, length).triu_().expand(count, -1, -1)
        dg = torch.bmm(later, per_step).view(chunks, batch, heads, length, keys)
        end = (dstates[-1] * states[-1]).sum(-1).view(1, batch, heads, keys)
        of_later_chunks = torch.cat((suffix_sums(dg[:, :, :, 0], 0)[1:], torch.zeros_like(end))).add_(end)
        dg += of_later_chunks.unsqueeze(3)
        dinitial = None
        if ctx.initial is not None:
            shape, dtype = ctx.initial
            dinitial = dstates[0].view(shape).to(dtype)

        def unchunk(x, dtype):
            return from_chunks(x.view(chunks, batch, heads, *x.shape[1:]), steps, dtype)

        dq, dk = dreaders.unbind(2)
        return (
            unchunk(dq.mul_(scale), q_type), unchunk(dk.add_(dwriters), k_type), unchunk(dv, v_type),
            from_chunks(dg, steps, g_type), unchunk(dbeta, beta_type), dinitial, None, None,
        )  # fmt: skip
