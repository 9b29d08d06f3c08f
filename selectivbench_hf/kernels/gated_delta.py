"""The gated delta rule in chunks.

    S_t = exp(g_t) (I - beta_t k_t k_t^T) S_{t-1} + beta_t k_t v_t^T,   o_t = scale * S_t^T q_t      (loop: reference.py)

Within a chunk, what each step writes is the solution of a unit lower triangular system (the WY form: Bischof & Van Loan 1987,
DeltaNet, Yang et al. 2024; with gates: Gated DeltaNet, 2024): with A = strict lower part of (beta K) K^T * D and M = (I + A)^-1,
W = M (beta e^G K) and U = M (beta V), the writes are X = U - W S, the outputs (e^G Q) S + (Q K^T * D) X, and the next state is
e^{G_C} S + (e^{G_C - G} K)^T X. The inverse is built by recursive halving down to single rows (block forward substitution): a
power series would lose all digits for nearly parallel keys. Its gradient has closed form: dA = -strict lower (M^T dU U^T + M^T dW W^T).
Sums of decays are float64 and exponents above 0 masked before exp (see simple_gla.py).

Axes: B batch, T time, G key heads, H value heads, K key channels, V value channels, N chunks, C steps of a chunk, M = N B H.
"""

import torch

from .layout import BlockView, chunk_length, compute_dtype, from_chunks, suffix_sums, to_chunks
from .simple_gla import chunk_decays, preferred_chunk

LONGEST_CHUNK = 32  # more only adds levels of halving


def gated_delta(q, k, v, g, beta, scale=None, initial_state=None, chunk=None):
    """q, k (B, T, G, K); v (B, T, H, V), H a multiple of G; g (B, T, H) log decay <= 0 or None; beta (B, T, H).

    initial_state (B, H, K, V). Returns o (B, T, H, V) in v's type and the last state (B, H, K, V) in float32 (float64 if an input
    is). scale: 1/sqrt(K). The keys should have at most unit length, else the recurrence itself explodes.
    """
    scale = q.shape[-1] ** -0.5 if scale is None else scale
    heads = v.shape[2]
    if q.shape[2] != heads:
        q, k = (x.repeat_interleave(heads // x.shape[2], dim=2) for x in (q, k))
    if g is None:
        g = v.new_zeros(v.shape[:3], dtype=torch.float32)
    return _GatedDelta.apply(
        q,
        k,
        v,
        g,
        beta,
        initial_state,
        scale,
        chunk_length(q.shape[1], chunk or preferred_chunk(q.shape[-1], v.shape[-1], LONGEST_CHUNK)),
    )


def unit_lower_inverse(strict: torch.Tensor) -> torch.Tensor:
    """(I + A)^-1 for strictly lower triangular A (M, C, C), C a power of two, by halving down to single rows."""
    length = strict.shape[-1]
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


class _GatedDelta(torch.autograd.Function):
    @staticmethod
    def forward(ctx, q, k, v, g, beta, initial_state, scale, length):
        dtype = compute_dtype(q, k, v, g, beta, initial_state)
        batch, steps, heads, keys = q.shape
        values = v.shape[3]
        with torch.autocast(q.device.type, enabled=False):
            qc, kc, vc = (to_chunks(x, length, dtype).flatten(0, 2) for x in (q, k, v))  # (M, C, D)
            bc = to_chunks(beta, length, dtype).flatten(0, 2).unsqueeze(-1)  # (M, C, 1)
            gc = to_chunks(g, length, torch.float64).flatten(0, 2)  # (M, C)
            chunks = qc.shape[0] // (batch * heads)
            inside, from_start, to_end, over = chunk_decays(gc, dtype)
            from_start, to_end = from_start.unsqueeze(-1), to_end.unsqueeze(-1)
            over = over.view(chunks, batch * heads, 1, 1)

            kt = kc.transpose(1, 2)
            strict = torch.bmm(kc, kt).mul_(inside).mul_(bc).tril_(-1)
            inverse = unit_lower_inverse(strict)
            w, u = torch.bmm(inverse, kc * (bc * from_start)), torch.bmm(inverse, vc * bc)
            qc.mul_(scale)
            weights = torch.bmm(qc, kt).mul_(inside)

            states = vc.new_empty(chunks + 1, batch * heads, keys, values)
            states[0].zero_() if initial_state is None else states[0].copy_(initial_state.flatten(0, 1))
            writes, w_n = u.view(chunks, -1, length, values), w.view(chunks, -1, length, keys)
            key_out = (kc * to_end).view(chunks, -1, length, keys).transpose(2, 3)
            for n in range(chunks):
                writes[n].baddbmm_(w_n[n], states[n], alpha=-1)
                torch.mul(states[n], over[n], out=states[n + 1]).baddbmm_(key_out[n], writes[n])
            writes = writes.view(-1, length, values)
            out = torch.bmm(qc * from_start, states[:-1].flatten(0, 1)).baddbmm_(weights, writes)
            result = from_chunks(out.view(chunks, batch, heads, length, values), steps, v.dtype)
        # what is one cheap product away is made again in the backward pass rather than held until then
        kept = (qc, kc, vc, bc, inside, from_start, to_end, over, strict, inverse, w, weights, states, writes)
        ctx.save_for_backward(*kept)
        ctx.shapes = (batch, steps, heads, scale, q.dtype, k.dtype, v.dtype, g.dtype, beta.dtype)
        ctx.initial = None if initial_state is None else (initial_state.shape, initial_state.dtype)
        return result, states[-1].view(batch, heads, keys, values).clone()

    @staticmethod
    @torch.autograd.function.once_differentiable
    def backward(ctx, do, dlast):
        qc, kc, vc, bc, inside, from_start, to_end, over, strict, inverse, w, weights, states, writes = (
            ctx.saved_tensors
        )
        batch, steps, heads, scale, q_type, k_type, v_type, g_type, beta_type = ctx.shapes
        length, keys = qc.shape[1:]
        chunks, values = states.shape[0] - 1, states.shape[-1]
        doc = to_chunks(do, length, vc.dtype).flatten(0, 2)
        before_t = states[:-1].flatten(0, 1).transpose(1, 2)

        # the scan backwards: dwrites is also the gradient of u, and minus it, times the state, that of w
        dwrites = torch.bmm(weights.transpose(1, 2), doc).view(chunks, -1, length, values)
        dstates = torch.empty_like(states)
        torch.bmm((qc * from_start).transpose(1, 2), doc, out=dstates[:-1].flatten(0, 1))
        dstates[-1].copy_(dlast.flatten(0, 1))
        key_out, w_n = (kc * to_end).view(chunks, -1, length, keys), w.view(chunks, -1, length, keys).transpose(2, 3)
        for n in range(chunks - 1, -1, -1):
            dwrites[n].baddbmm_(key_out[n], dstates[n + 1])
            dstates[n].addcmul_(dstates[n + 1], over[n]).baddbmm_(w_n[n], dwrites[n], alpha=-1)
        dwrites = dwrites.view(-1, length, values)

        dkey_out = torch.bmm(writes, dstates[1:].flatten(0, 1).transpose(1, 2))
        dq_in = torch.bmm(doc, before_t)
        inverse_t = inverse.transpose(1, 2)
        dvalue_in = torch.bmm(inverse_t, dwrites)
        dkey_in = torch.bmm(inverse_t, torch.bmm(dwrites, before_t)).neg_()
        u = torch.baddbmm(writes, w, before_t.transpose(1, 2))
        dstrict = torch.bmm(dvalue_in, u.transpose(1, 2)).baddbmm_(dkey_in, w.transpose(1, 2)).tril_(-1).neg_()
        dweights = torch.bmm(doc, writes.transpose(1, 2))

        # gates: each product's gradient times the product, counted where its exponent begins and where it ends
        pair = torch.mul(dstrict, strict).addcmul_(dweights, weights)
        dgates = pair.sum(-1).sub_(pair.sum(-2))
        entering, leaving = from_start.squeeze(-1), torch.linalg.vecdot(dkey_out, kc).mul_(to_end.squeeze(-1))
        dkey_gate = torch.linalg.vecdot(dkey_in, kc).mul_(entering)  # times beta for the gates, as it is for beta
        dgates.addcmul_(dkey_gate, bc.squeeze(-1)).addcmul_(torch.linalg.vecdot(dq_in, qc), entering).sub_(leaving)
        carried = (dstates[1:] * states[:-1]).sum((2, 3)).view(-1).mul_(over.view(-1))
        dgates[:, -1] += leaving.sum(-1).add_(carried)
        dg = suffix_sums(dgates.double(), 1)

        dweights.mul_(inside)
        dstrict.mul_(inside)
        # beta multiplies the rows of `strict`, as it does those of the keys and values
        from_strict = torch.bmm(dstrict, kc)
        dbeta = dkey_gate.add_(torch.linalg.vecdot(from_strict, kc)).add_(torch.linalg.vecdot(dvalue_in, vc))
        dq = torch.bmm(dweights, kc).addcmul_(dq_in, from_start).mul_(scale)
        dk = torch.bmm(dweights.transpose(1, 2), qc).baddbmm_(dstrict.transpose(1, 2), kc * bc)
        dk.addcmul_(from_strict.addcmul_(dkey_in, from_start), bc).addcmul_(dkey_out, to_end)
        dv = dvalue_in.mul_(bc)
        dinitial = None
        if ctx.initial is not None:
            shape, dtype = ctx.initial
            dinitial = dstates[0].view(shape).to(dtype)

        def unchunk(x, dtype):
            return from_chunks(x.view(chunks, batch, heads, *x.shape[1:]), steps, dtype)

        return (
            unchunk(dq, q_type), unchunk(dk, k_type), unchunk(dv, v_type), unchunk(dg, g_type), unchunk(dbeta, beta_type),
            dinitial, None, None,
        )  # fmt: skip
