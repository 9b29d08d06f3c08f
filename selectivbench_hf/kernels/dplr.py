"""A decay per key channel plus any matrix of rank one, in chunks: RWKV-7.

    S_t = (diag(exp(g_t)) + b_t a_t^T) S_{t-1} + k_t v_t^T,   o_t = scale * S_t^T q_t

(loop: reference_generalized.py; RWKV-7, Peng et al. 2025, arXiv:2503.14456; "diagonal plus low rank"). What step i reads with a_i is
u_i = a_i^T S_{i-1}, and it writes b_i u_i + k_i v_i: queries and a are two readers, a seeing the state before the step's own decay, b
and k two writers, and one sweep of halving.py gives the weights between all four. Within a chunk u solves a unit lower triangular
system, u = (I - A_ab)^-1 (A_ak V + (decays before each step * a) S). The gradient of the gates needs no states, as in kda.py:
dg_t = sum_{i >= t} q_i dq_i + a_i da_i - b_i db_i - k_i dk_i, less a_t da_t, plus <dS, S> at the end.

Axes: B batch, T time, H heads, K key channels, V value channels, N chunks, C steps of a chunk, M = N B H. Readers, writers and what is
written stand side by side at each step: (M, C, 2, K) and (M, C, 2, V).
"""

import torch

from .gated_delta import unit_lower_inverse
from .halving import gate_gradient, halve, halve_back, preferred_chunk
from .layout import by_chunk, chunk_length, compute_dtype, exact_backward, from_chunks, to_chunks

QUERY, A = 0, 1  # the readers
B, KEY = 0, 1  # the writers


def dplr(q, k, v, a, b, g, scale=None, initial_state=None, chunk=None):
    """q, k, a, b, g (B, T, H, K), g <= 0 log decay; v (B, T, H, V); initial_state (B, H, K, V). scale: 1/sqrt(K).

    Returns o (B, T, H, V) in v's type and the last state (B, H, K, V) in float32 (float64 if an input is).
    """
    scale = q.shape[-1] ** -0.5 if scale is None else scale
    chunk = chunk or preferred_chunk(q.shape[-1], v.shape[-1])
    return _DPLR.apply(q, k, v, a, b, g, initial_state, scale, chunk_length(q.shape[1], chunk))


class _DPLR(torch.autograd.Function):
    @staticmethod
    def forward(ctx, q, k, v, a, b, g, initial_state, scale, length):
        dtype = compute_dtype(q, k, v, a, b, g, initial_state)
        batch, steps, heads, keys = q.shape
        values = v.shape[3]
        with torch.autocast(q.device.type, enabled=False):
            decay = to_chunks(g, length, dtype).exp_()  # (N, B, H, C, K)
            chunks, sizes = len(decay), decay.shape[:-1]
            reads, writes = (decay.new_empty(*sizes, 2, keys) for _ in "rw")
            written = decay.new_empty(*sizes, 2, values)
            to_chunks(q, length, dtype, out=reads[..., QUERY, :]).mul_(scale)
            for x, out in ((a, reads[..., A, :]), (b, writes[..., B, :]), (k, writes[..., KEY, :])):
                to_chunks(x, length, dtype, out=out)
            to_chunks(v, length, dtype, out=written[..., KEY, :])
            decay, reads, writes, written = (x.flatten(0, 2) for x in (decay, reads, writes, written))

            weights = decay.new_empty(len(decay), length, 2, 2 * length)
            readers, writers, over = halve(reads, writes, decay, 1, weights.flatten(1, 2))
            inverse = unit_lower_inverse(weights[:, :, A, B::2].neg())
            key_weights = weights[:, :, A, KEY::2].contiguous()
            found = torch.bmm(key_weights, written[:, :, KEY])

            states = decay.new_empty(chunks + 1, batch * heads, keys, values)
            states[0].zero_() if initial_state is None else states[0].copy_(initial_state.flatten(0, 1))
            out = decay.new_empty(len(decay), length, values)
            parts = found, written, out, inverse, weights, readers, writers.flatten(1, 2), over.unsqueeze(-1)
            for n, part in enumerate(by_chunk(chunks, *parts)):
                found_n, written_n, out_n, inverse_n, weights_n, readers_n, writers_n, over_n = part
                found_n.baddbmm_(readers_n[:, :, A], states[n])
                written_n[:, :, B] = torch.bmm(inverse_n, found_n)
                all_n = written_n.flatten(1, 2)
                torch.mul(states[n], over_n, out=states[n + 1]).baddbmm_(writers_n.transpose(1, 2), all_n)
                torch.bmm(readers_n[:, :, QUERY], states[n], out=out_n).baddbmm_(weights_n[:, :, QUERY], all_n)
            result = from_chunks(out.view(chunks, batch, heads, length, values), steps, v.dtype)
        ctx.save_for_backward(
            reads, writes, readers, writers, over, written, decay, weights, key_weights, inverse, states
        )
        ctx.shapes = (batch, steps, heads, scale)
        ctx.types = [x.dtype for x in (q, k, v, a, b, g)]
        ctx.initial = None if initial_state is None else (initial_state.shape, initial_state.dtype)
        return result, states[-1].view(batch, heads, keys, values).clone()

    @staticmethod
    @exact_backward
    def backward(ctx, do, dlast):
        reads, writes, readers, writers, over, written, decay, weights, key_weights, inverse, states = (
            ctx.saved_tensors
        )
        batch, steps, heads, scale = ctx.shapes
        length, keys = decay.shape[1:]
        chunks = states.shape[0] - 1
        doc = to_chunks(do, length, decay.dtype).flatten(0, 2)

        # the scan backwards; `dfound` is the gradient of what the triangular system is solved for
        dreaders, dwriters = torch.empty_like(reads), torch.empty_like(writes)
        dwritten, dfound = torch.empty_like(written), torch.empty_like(doc)
        dstate = dlast.flatten(0, 1).to(decay.dtype).clone()
        end = (dstate * states[-1]).sum(-1).view(batch, heads, keys)
        given = by_chunk(chunks, doc, written, inverse, weights, readers, writers.flatten(1, 2), over.unsqueeze(-1))
        sought = by_chunk(chunks, dwritten, dfound, dreaders, dwriters.flatten(1, 2))
        for n in range(chunks - 1, -1, -1):
            do_n, written_n, inverse_n, weights_n, readers_n, writers_n, over_n = given[n]
            dwritten_n, dfound_n, dreaders_n, dwriters_n = sought[n]
            state_t, dall = states[n].transpose(1, 2), dwritten_n.flatten(1, 2)
            torch.bmm(weights_n[:, :, QUERY].transpose(1, 2), do_n, out=dall)
            dall.baddbmm_(writers_n, dstate)
            torch.bmm(inverse_n.transpose(1, 2), dwritten_n[:, :, B], out=dfound_n)
            torch.bmm(written_n.flatten(1, 2), dstate.transpose(1, 2), out=dwriters_n)
            dreaders_n[:, :, QUERY] = torch.bmm(do_n, state_t)
            dreaders_n[:, :, A] = torch.bmm(dfound_n, state_t)
            dstate.mul_(over_n).baddbmm_(readers_n[:, :, QUERY].transpose(1, 2), do_n)
            dstate.baddbmm_(readers_n[:, :, A].transpose(1, 2), dfound_n)

        dv = torch.baddbmm(dwritten[:, :, KEY], key_weights.transpose(1, 2), dfound)
        dweights, written_t = torch.empty_like(weights), written.flatten(1, 2).transpose(1, 2)
        dweights[:, :, QUERY], dweights[:, :, A] = torch.bmm(doc, written_t), torch.bmm(dfound, written_t)
        dgates = halve_back(reads, writes, decay, 1, dreaders, dwriters, dweights.flatten(1, 2))
        dg = gate_gradient(*dgates, end)
        dq, da = dreaders.unbind(2)
        dinitial = None
        if ctx.initial is not None:
            shape, dtype = ctx.initial
            dinitial = dstate.view(shape).to(dtype)
        gradients = (dq.mul_(scale), dwriters[:, :, KEY], dv, da, dwriters[:, :, B], dg.flatten(0, 2))
        gradients = (
            from_chunks(x.unflatten(0, (chunks, batch, heads)), steps, dtype)
            for x, dtype in zip(gradients, ctx.types, strict=True)
        )
        return *gradients, dinitial, None, None
