"""Linear attention with one decay per head, in chunks: simple GLA, retention, linear attention, and the scan of Mamba-2.

    S_t = exp(g_t) S_{t-1} + k_t v_t^T,   o_t = scale * S_t^T q_t                                    (loop: reference.py)

Within a chunk the outputs are (Q K^T * D) V with D_ij = exp(g_{j+1} + ... + g_i); across chunks only the states are sequential
(chunkwise retention, Sun et al. 2023; SSD, Dao & Gu 2024). Sums of decays are held in float64, where differences stay exact for
gates of -1e4 and less, and exponents above 0 are masked before exp. The gradient of the gates needs no states: everything in
o_i scales with the decays up to i, and everything that v_j gives scales with those after j, so that
dg_t = sum_{i >= t} <do_i, o_i> - sum_{j >= t} <dv_j, v_j> + <dS, S> at the end.

Axes: B batch, T time, G key heads, H = G R value heads, K key channels, V value channels, N chunks, C steps of a chunk.
"""

import torch

from .layout import chunk_length, compute_dtype, exact_backward, from_chunks, suffix_sums, to_chunks


def simple_gla(q, k, v, g=None, scale=None, initial_state=None, chunk=None):
    """q, k (B, T, G, K); v (B, T, H, V), H a multiple of G; g (B, T, H) log decay <= 0 or None; initial_state (B, H, K, V).

    Returns o (B, T, H, V) in v's type and the last state (B, H, K, V) in float32 (float64 if an input is). scale: 1/sqrt(K).
    """
    scale = q.shape[-1] ** -0.5 if scale is None else scale
    if g is None:
        g = v.new_zeros(v.shape[:3], dtype=torch.float32)
    chunk = chunk or preferred_chunk(q.shape[-1], v.shape[-1] * (v.shape[2] // q.shape[2]))
    return _SimpleGLA.apply(q, k, v, g, initial_state, scale, chunk_length(q.shape[1], chunk))


def preferred_chunk(key_channels: int, value_channels: int, most: int = 64) -> int:
    """Chunk length: N states of K x V and N matrices of C x C should weigh about the same (measured; see benchmarks/kernels.py)."""
    state = key_channels * value_channels
    return min(most, 16 if state <= 512 else 32 if state <= 4096 else 64)


def chunk_decays(g: torch.Tensor, dtype: torch.dtype):
    """From log decays g (..., C): between steps, D (..., C, C) lower triangular; to each step from before the chunk (..., C); from each
    step to the chunk's end (..., C); over all of it (...)."""
    total = g.double().cumsum(-1)
    above = torch.ones(g.shape[-1], g.shape[-1], dtype=torch.bool, device=g.device).triu(1)
    inside = g.new_empty(*g.shape, g.shape[-1], dtype=dtype)
    torch.sub(
        total[..., :, None], total[..., None, :], out=inside
    )  # the difference is float64, only what is kept of it is not
    inside.masked_fill_(above, -torch.inf).exp_()
    last = total[..., -1:]
    return inside, total.exp().to(dtype), (last - total).exp().to(dtype), last[..., 0].exp().to(dtype)


class _SimpleGLA(torch.autograd.Function):
    @staticmethod
    def forward(ctx, q, k, v, g, initial_state, scale, length):
        dtype = compute_dtype(q, k, v, g, initial_state)
        batch, steps, heads, keys = q.shape
        repeat, values = v.shape[2] // heads, v.shape[3]
        with torch.autocast(q.device.type, enabled=False):
            qc, kc = (to_chunks(x, length, dtype).flatten(0, 2) for x in (q, k))  # (M, C, K), M = N B G
            vc = to_chunks(v.reshape(batch, steps, heads, repeat * values), length, dtype)  # (N, B, G, C, R V)
            gc = to_chunks(g.unflatten(2, (heads, repeat)), length, torch.float64).transpose(3, 4)  # (N, B, G, R, C)
            qc.mul_(scale)
            chunks = vc.shape[0]
            inside, from_start, to_end, over = chunk_decays(gc, dtype)
            from_start, to_end = (x.transpose(3, 4).reshape(-1, length, repeat, 1) for x in (from_start, to_end))
            over = over[:, :, :, None, :, None]  # (N, B, G, 1, R, 1)
            vc, inside = vc.flatten(0, 2), inside.flatten(0, 2)  # (M, C, R V), (M, R, C, C)

            # states before each chunk, and after the last
            states = vc.new_empty(chunks + 1, batch, heads, keys, repeat, values)
            if initial_state is None:
                states[0].zero_()
            else:
                states[0].copy_(initial_state.unflatten(1, (heads, repeat)).transpose(2, 3))
            flat = states.view(chunks + 1, batch * heads, keys, repeat * values)
            torch.bmm(kc.transpose(1, 2), _times(vc, to_end), out=flat[1:].flatten(0, 1))
            for n in range(chunks):
                states[n + 1].addcmul_(states[n], over[n])

            out = torch.bmm(qc, flat[:-1].flatten(0, 1))
            out.view(-1, length, repeat, values).mul_(from_start)
            scores = torch.bmm(qc, kc.transpose(1, 2))
            for r in range(repeat):
                part = slice(r * values, (r + 1) * values)
                out[:, :, part] += torch.bmm(scores * inside[:, r], vc[:, :, part])
            result = from_chunks(out.view(chunks, batch, heads, length, -1), steps, v.dtype).view(v.shape)
            last = states[-1].transpose(2, 3).reshape(batch, heads * repeat, keys, values).clone()
        ctx.save_for_backward(qc, kc, vc, inside, from_start, to_end, over, states, scores, out)
        ctx.shapes = (batch, steps, heads, repeat, scale, q.dtype, k.dtype, v.dtype, g.dtype)
        ctx.initial = None if initial_state is None else (initial_state.shape, initial_state.dtype)
        return result, last

    @staticmethod
    @exact_backward
    def backward(ctx, do, dlast):
        qc, kc, vc, inside, from_start, to_end, over, states, scores, out = ctx.saved_tensors
        batch, steps, heads, repeat, scale, q_type, k_type, v_type, g_type = ctx.shapes
        length, keys = qc.shape[1:]
        chunks, values = states.shape[0] - 1, states.shape[-1]
        doc = to_chunks(do.reshape(batch, steps, heads, repeat * values), length, vc.dtype).flatten(0, 2)
        do_start = _times(doc, from_start)

        # gradients of the states after each chunk (index n + 1), and of the initial state (index 0)
        dstates = torch.empty_like(states)
        flat = dstates.view(chunks + 1, batch * heads, keys, repeat * values)
        torch.bmm(qc.transpose(1, 2), do_start, out=flat[:-1].flatten(0, 1))
        dstates[-1].copy_(dlast.unflatten(1, (heads, repeat)).transpose(2, 3))
        for n in range(chunks - 1, -1, -1):
            dstates[n].addcmul_(dstates[n + 1], over[n])
        flat_states = states.view(chunks + 1, batch * heads, keys, repeat * values)[:-1].flatten(0, 1)
        flat_dstates = flat[1:].flatten(0, 1)

        dv = torch.bmm(kc, flat_dstates)
        dv.view(-1, length, repeat, values).mul_(to_end)
        dscores = None
        for r in range(repeat):
            part = slice(r * values, (r + 1) * values)
            weights = inside[:, r]
            dv[:, :, part] += torch.bmm((scores * weights).transpose(1, 2), doc[:, :, part])
            here = torch.bmm(doc[:, :, part], vc[:, :, part].transpose(1, 2)).mul_(weights)
            dscores = here if dscores is None else dscores.add_(here)
        dq = torch.bmm(do_start, flat_states.transpose(1, 2)).baddbmm_(dscores, kc).mul_(scale)
        dk = torch.bmm(_times(vc, to_end), flat_dstates.transpose(1, 2)).baddbmm_(dscores.transpose(1, 2), qc)

        dg = None
        if ctx.needs_input_grad[3]:
            per_step = torch.mul(doc, out).sub_(dv * vc).view(chunks, batch, heads, length, repeat, values).sum(-1)
            per_step = from_chunks(per_step, steps, torch.float64).flatten(2)  # (B, T, H)
            end = (dstates[-1] * states[-1]).sum((2, 4)).flatten(1)
            dg = suffix_sums(per_step, 1).add_(end[:, None]).to(g_type)
        dinitial = None
        if ctx.initial is not None:
            shape, dtype = ctx.initial
            dinitial = dstates[0].transpose(2, 3).reshape(shape).to(dtype)

        def unchunk(x, dtype):
            return from_chunks(x.view(chunks, batch, heads, length, -1), steps, dtype)

        dv = unchunk(dv, v_type).view(batch, steps, heads * repeat, values)
        return unchunk(dq, q_type), unchunk(dk, k_type), dv, dg, dinitial, None, None


def _times(x: torch.Tensor, factor: torch.Tensor) -> torch.Tensor:
    """(M, C, R V) times (M, C, R, 1)."""
    return (x.view(*factor.shape[:3], -1) * factor).view(x.shape)
