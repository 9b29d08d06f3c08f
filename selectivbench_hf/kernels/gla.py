"""Gated linear attention: one decay per key channel, in chunks.

    S_t = diag(exp(g_t)) S_{t-1} + k_t v_t^T,   o_t = scale * S_t^T q_t                              (loop: reference.py)

Inside a chunk the weight of step j on step i is A_ij = sum_d q_id k_jd a_{j+1,d} ... a_{i,d}, a = exp(g): not a plain product, and
dividing cumulative products is what breaks for strong decays. Recursive halving (halving.py) needs no division and no exponent above
0; gates of 0 and of -1e4 are equally exact.

The gradient of the gates needs no states: dg_t = sum_{i >= t} q_i dq_i - k_i dk_i, plus <dS, S> at the end (Yang et al. 2023).
Axes: B batch, T time, H heads, K key channels, V value channels, N chunks, C steps of a chunk, M = N B H.
"""

import torch

from .halving import gate_gradient, halve, halve_back
from .layout import by_chunk, chunk_length, compute_dtype, exact_backward, from_chunks, to_chunks
from .simple_gla import preferred_chunk

LONGEST_CHUNK = 32  # more only adds levels of halving


def gla(q, k, v, g, scale=None, initial_state=None, chunk=None):
    """q, k, g (B, T, H, K), g <= 0 log decay; v (B, T, H, V); initial_state (B, H, K, V). scale: 1/sqrt(K).

    Returns o (B, T, H, V) in v's type and the last state (B, H, K, V) in float32 (float64 if an input is).
    """
    scale = q.shape[-1] ** -0.5 if scale is None else scale
    chunk = chunk or preferred_chunk(q.shape[-1], v.shape[-1], LONGEST_CHUNK)
    return _GLA.apply(q, k, v, g, initial_state, scale, chunk_length(q.shape[1], chunk))


class _GLA(torch.autograd.Function):
    @staticmethod
    def forward(ctx, q, k, v, g, initial_state, scale, length):
        dtype = compute_dtype(q, k, v, g, initial_state)
        batch, steps, heads, keys = q.shape
        values = v.shape[3]
        with torch.autocast(q.device.type, enabled=False):
            qc, kc, vc, decay = (to_chunks(x, length, dtype) for x in (q, k, v, g))
            chunks = len(qc)
            qc, kc, vc, decay = (x.flatten(0, 2) for x in (qc.mul_(scale), kc, vc, decay.exp_()))
            weights = decay.new_empty(len(qc), length, length)
            queries, key_out, over = halve(qc.unsqueeze(2), kc.unsqueeze(2), decay, 1, weights)
            queries, key_out = queries.squeeze(2), key_out.squeeze(2)

            states = vc.new_empty(chunks + 1, batch * heads, keys, values)
            states[0].zero_() if initial_state is None else states[0].copy_(initial_state.flatten(0, 1))
            out = torch.empty_like(vc)
            parts = by_chunk(chunks, queries, key_out.transpose(1, 2), vc, weights, out, over.unsqueeze(-1))
            for n, (queries_n, key_out_n, v_n, weights_n, out_n, over_n) in enumerate(parts):
                torch.mul(states[n], over_n, out=states[n + 1]).baddbmm_(key_out_n, v_n)
                torch.bmm(queries_n, states[n], out=out_n).baddbmm_(weights_n, v_n)
            result = from_chunks(out.view(chunks, batch, heads, length, values), steps, v.dtype)
        ctx.save_for_backward(qc, kc, vc, decay, queries, key_out, over, weights, states)
        ctx.shapes = (batch, steps, heads, scale)
        ctx.types = [x.dtype for x in (q, k, v, g)]
        ctx.initial = None if initial_state is None else (initial_state.shape, initial_state.dtype)
        return result, states[-1].view(batch, heads, keys, values).clone()

    @staticmethod
    @exact_backward
    def backward(ctx, do, dlast):
        qc, kc, vc, decay, queries, key_out, over, weights, states = ctx.saved_tensors
        batch, steps, heads, scale = ctx.shapes
        length, keys = qc.shape[1:]
        chunks = states.shape[0] - 1
        doc = to_chunks(do, length, vc.dtype).flatten(0, 2)

        dq, dk, dv, dweights = (torch.empty_like(x) for x in (qc, kc, vc, weights))
        dstate = dlast.flatten(0, 1).to(vc.dtype).clone()
        end = (dstate * states[-1]).sum(-1).view(batch, heads, keys)
        given = by_chunk(chunks, doc, vc, queries, key_out, weights, over.unsqueeze(-1))
        sought = by_chunk(chunks, dq, dk, dv, dweights)
        for n in range(chunks - 1, -1, -1):
            (do_n, v_n, queries_n, key_out_n, weights_n, over_n), (dq_n, dk_n, dv_n, dweights_n) = given[n], sought[n]
            torch.bmm(do_n, states[n].transpose(1, 2), out=dq_n)
            torch.bmm(v_n, dstate.transpose(1, 2), out=dk_n)
            torch.bmm(key_out_n, dstate, out=dv_n).baddbmm_(weights_n.transpose(1, 2), do_n)
            torch.bmm(do_n, v_n.transpose(1, 2), out=dweights_n)
            dstate.mul_(over_n).baddbmm_(queries_n.transpose(1, 2), do_n)

        read, write = qc.unsqueeze(2), kc.unsqueeze(2)
        dgates = halve_back(read, write, decay, 1, dq.unsqueeze(2), dk.unsqueeze(2), dweights)
        dg = gate_gradient(*dgates, end)
        dinitial = None
        if ctx.initial is not None:
            shape, dtype = ctx.initial
            dinitial = dstate.view(shape).to(dtype)
        gradients = (
            from_chunks(x.unflatten(0, (chunks, batch, heads)), steps, dtype)
            for x, dtype in zip((dq.mul_(scale), dk, dv, dg.flatten(0, 2)), ctx.types, strict=True)
        )
        return *gradients, dinitial, None, None
