"""Kimi Delta Attention and Gated DeltaNet-2: the delta rule with one decay per key channel, in chunks.

    S' = diag(exp(g_t)) S_{t-1},   S_t = S' + beta_t k_t (v_t - S'^T k_t)^T,   o_t = scale * S_t^T q_t

(loops: reference_generalized.py; Kimi Linear, Moonshot AI 2025, arXiv:2510.26692). Gated DeltaNet-2 (Hatamizadeh et al. 2026,
arXiv:2605.22791) erases with a key p_t = b_t * k_t of its own: S'^T p_t above for S'^T k_t. As in gated_delta.py, with both matrices
over pairs of steps, Q-K and K-K (or p-K), from one sweep of halving.py: queries and keys (or p) are the two readers, keys the writer.
Within a chunk, with P the strict lower K-K part, M = (I + beta P)^-1 and E = V - (decay * K) S, the writes are X = M (beta E); with
Z = M^T dX the gradient of beta P is minus the strict lower part of Z X^T. The gradient of the gates needs no states: whatever reads at step i scales with the
decays up to i, whatever is written at j with those after j, so with the gradients of keys as readers and as writers
dg_t = sum_{i >= t} q_i dq_i + k_i (dk_i reading - dk_i writing), plus <dS, S> at the end.

Axes: B batch, T time, G key heads, H value heads, K key channels, V value channels, N chunks, C steps of a chunk, M = N B H.
"""

import torch

from .gated_delta import unit_lower_inverse
from .halving import gate_gradient, halve, halve_back, preferred_chunk
from .layout import by_chunk, chunk_length, compute_dtype, exact_backward, from_chunks, to_chunks

QUERY, KEY = 0, 1  # the readers


def kda(q, k, v, g, beta, scale=None, initial_state=None, chunk=None):
    """q, k (B, T, G, K); v (B, T, H, V), H a multiple of G; g (B, T, H, K) log decay <= 0; beta (B, T, H).

    initial_state (B, H, K, V). Returns o (B, T, H, V) in v's type and the last state (B, H, K, V) in float32 (float64 if an input
    is). scale: 1/sqrt(K). The keys should have at most unit length, else the recurrence itself explodes.
    """
    heads = v.shape[2]
    if q.shape[2] != heads:
        q, k = (x.repeat_interleave(heads // x.shape[2], dim=2) for x in (q, k))
    return _apply(q, k, None, v, g, beta, scale, initial_state, chunk)


def gdn2(q, k, v, g, b, w, scale=None, initial_state=None, chunk=None):
    """The same with a gate per channel for erasing, b (B, T, H, K), and one for writing, w (B, T, H, V); all of H heads.

    S_t = S' + k_t (w_t v_t - S'^T (b_t k_t))^T."""
    dtype = compute_dtype(q, k, v, g, b, w, initial_state)
    erased, written = b.to(dtype) * k.to(dtype), w.to(dtype) * v.to(dtype)
    out, state = _apply(q, k, erased, written, g, g.new_ones(g.shape[:3]), scale, initial_state, chunk)
    return out.to(v.dtype), state


def _apply(q, k, p, v, g, beta, scale, initial_state, chunk):
    scale = q.shape[-1] ** -0.5 if scale is None else scale
    chunk = chunk or preferred_chunk(q.shape[-1], v.shape[-1])
    return _KDA.apply(q, k, p, v, g, beta, initial_state, scale, chunk_length(q.shape[1], chunk))


class _KDA(torch.autograd.Function):
    @staticmethod
    def forward(ctx, q, k, p, v, g, beta, initial_state, scale, length):
        dtype = compute_dtype(q, k, p, v, g, beta, initial_state)
        batch, steps, heads, keys = q.shape
        values = v.shape[3]
        with torch.autocast(q.device.type, enabled=False):
            errors = to_chunks(v, length, dtype).flatten(0, 2)  # (M, C, V)
            bc = to_chunks(beta, length, dtype).flatten(0, 2).unsqueeze(-1)  # (M, C, 1)
            decay = to_chunks(g, length, dtype).exp_()  # (N, B, H, C, K)
            chunks = len(decay)
            reads = decay.new_empty(*decay.shape[:-1], 2, keys)
            to_chunks(q, length, dtype, out=reads[..., QUERY, :]).mul_(scale)
            to_chunks(k if p is None else p, length, dtype, out=reads[..., KEY, :])
            decay, reads = decay.flatten(0, 2), reads.flatten(0, 2)  # (M, C, K), (M, C, 2, K)
            kc = (
                reads[:, :, KEY:] if p is None else to_chunks(k, length, dtype).flatten(0, 2).unsqueeze(2)
            )  # (M, C, 1, K)

            weights = decay.new_empty(len(reads), length, 2, length)
            readers, writers, over = halve(reads, kc, decay, 2, weights.flatten(1, 2))
            inverse = unit_lower_inverse(weights[:, :, KEY] * bc)

            states = decay.new_empty(chunks + 1, batch * heads, keys, values)
            states[0].zero_() if initial_state is None else states[0].copy_(initial_state.flatten(0, 1))
            writes, out = torch.empty_like(errors), torch.empty_like(errors)
            parts = errors, writes, out, bc, inverse, weights, readers, writers.squeeze(2), over.unsqueeze(-1)
            for n, part in enumerate(by_chunk(chunks, *parts)):
                error, write, out_n, beta_n, inverse_n, weights_n, readers_n, writers_n, over_n = part
                error.baddbmm_(readers_n[:, :, KEY], states[n], alpha=-1)
                torch.bmm(inverse_n, error * beta_n, out=write)
                torch.mul(states[n], over_n, out=states[n + 1]).baddbmm_(writers_n.transpose(1, 2), write)
                torch.bmm(readers_n[:, :, QUERY], states[n], out=out_n).baddbmm_(weights_n[:, :, QUERY], write)
            result = from_chunks(out.view(chunks, batch, heads, length, values), steps, v.dtype)
        ctx.save_for_backward(reads, kc, readers, writers, over, errors, writes, bc, decay, weights, inverse, states)
        ctx.shapes = (batch, steps, heads, scale)
        ctx.types = [None if x is None else x.dtype for x in (q, k, p, v, g, beta)]
        ctx.initial = None if initial_state is None else (initial_state.shape, initial_state.dtype)
        return result, states[-1].view(batch, heads, keys, values).clone()

    @staticmethod
    @exact_backward
    def backward(ctx, do, dlast):
        reads, kc, readers, writers, over, errors, writes, bc, decay, weights, inverse, states = ctx.saved_tensors
        batch, steps, heads, scale = ctx.shapes
        length, keys = decay.shape[1:]
        chunks = states.shape[0] - 1
        doc = to_chunks(do, length, decay.dtype).flatten(0, 2)

        # the scan backwards; `inner` is Z, and beta Z the gradient of the errors and so of v
        dreaders, dwriters = torch.empty_like(reads), torch.empty_like(decay)
        inner, dv = torch.empty_like(errors), torch.empty_like(errors)
        dstate = dlast.flatten(0, 1).to(decay.dtype).clone()
        end = (dstate * states[-1]).sum(-1).view(batch, heads, keys)
        given = by_chunk(chunks, doc, writes, bc, inverse, weights, readers, writers.squeeze(2), over.unsqueeze(-1))
        sought = by_chunk(chunks, inner, dv, dreaders, dwriters)
        dwrite = torch.empty_like(given[0][0])
        for n in range(chunks - 1, -1, -1):
            do_n, write, beta_n, inverse_n, weights_n, readers_n, writers_n, over_n = given[n]
            inner_n, dv_n, dreaders_n, dwriters_n = sought[n]
            state_t = states[n].transpose(1, 2)
            torch.bmm(weights_n[:, :, QUERY].transpose(1, 2), do_n, out=dwrite).baddbmm_(writers_n, dstate)
            torch.bmm(write, dstate.transpose(1, 2), out=dwriters_n)
            torch.bmm(inverse_n.transpose(1, 2), dwrite, out=inner_n)
            torch.mul(inner_n, beta_n, out=dv_n)
            dreaders_n[:, :, QUERY] = torch.bmm(do_n, state_t)
            torch.neg(torch.bmm(dv_n, state_t), out=dreaders_n[:, :, KEY])
            dstate.mul_(over_n).baddbmm_(readers_n[:, :, QUERY].transpose(1, 2), do_n)
            dstate.baddbmm_(readers_n[:, :, KEY].transpose(1, 2), dv_n, alpha=-1)

        writes_t = writes.transpose(1, 2)
        dpairs = torch.bmm(inner, writes_t).neg_().tril_(-1)  # of beta P
        dbeta = torch.linalg.vecdot(inner, errors).add_(torch.linalg.vecdot(dpairs, weights[:, :, KEY]))
        dweights = torch.empty_like(weights)
        dweights[:, :, QUERY] = torch.bmm(doc, writes_t)
        torch.mul(dpairs, bc, out=dweights[:, :, KEY])
        dgates = halve_back(reads, kc, decay, 2, dreaders, dwriters.unsqueeze(2), dweights.flatten(1, 2))
        dg = gate_gradient(*dgates, end)
        dq, dp = dreaders.unbind(2)
        if ctx.types[2] is None:  # the key erases and is written
            dwriters.add_(dp)
        dinitial = None
        if ctx.initial is not None:
            shape, dtype = ctx.initial
            dinitial = dstate.view(shape).to(dtype)
        gradients = (dq.mul_(scale), dwriters, dp, dv, dg.flatten(0, 2), dbeta)
        gradients = (
            None if dtype is None else from_chunks(x.unflatten(0, (chunks, batch, heads)), steps, dtype)
            for x, dtype in zip(gradients, ctx.types, strict=True)
        )
        return *gradients, dinitial, None, None
