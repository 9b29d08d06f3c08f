"""Log-linear attention: linear attention whose past is kept in blocks of 1, 2, 4, ... steps, each read with a weight of its own.

    o_i = sum_{j <= i} scales_i[level(i, j)] exp(g_{j+1} + ... + g_i) (q_i k_j) v_j          (all pairs: reference_scan.py)

level(i, j) is the bit length of i xor j: 0 for the step itself, l + 1 for the block of 2^l steps that ends where bit l of i was set
(a Fenwick tree; Guo et al. 2025, arXiv:2506.04761). In chunks of C steps the lower levels are a masked C-by-C product, and each
higher level is one state for every pair of neighbouring blocks, read by the chunks of the second. To go on step by step, the state after
T steps has one matrix for every bit that T has.

Axes: B batch, T time, G key heads, H = G R value heads, K key channels, V value channels, L levels, C steps of a chunk, M chunks.
"""

import functools

import torch
from torch.nn import functional as F

from .layout import chunk_length, compute_dtype

LENGTH = 64  # steps of a chunk


def log_linear(q, k, v, g, scales, scale=None, chunk=None):
    """q, k (B, T, G, K); v (B, T, H, V), H a multiple of G; g (B, T, H) log decay <= 0; scales (B, T, H, L). scale: 1/sqrt(K).

    Returns o (B, T, H, V) in v's type.
    """
    dtype = compute_dtype(q, k, v, g, scales)
    batch, steps, heads, keys = q.shape
    repeat, values = v.shape[2] // heads, v.shape[3]
    check_levels(steps, scales.shape[-1])
    scale = keys**-0.5 if scale is None else scale
    length = chunk_length(steps, chunk or LENGTH)
    with torch.autocast(q.device.type, enabled=False):
        qc, kc, vc, gc, weights = (
            _chunks(x, length) for x in (q.to(dtype) * scale, k.to(dtype), v.to(dtype), g, scales)
        )
        chunks = qc.shape[0]
        vc = vc.view(chunks, batch, heads, repeat, length, values)
        gc = gc.view(chunks, batch, heads, repeat, length)
        weights = weights.view(chunks, batch, heads, repeat, length, -1).to(dtype)
        total = gc.double().cumsum(-1)  # differences of long sums stay exact

        level, future = _levels(length, q.device)
        inside = (total[..., :, None] - total[..., None, :]).to(dtype).masked_fill(future, -torch.inf).exp()
        inside = inside * weights.gather(-1, level.expand(*gc.shape, -1))
        out = torch.matmul((qc @ kc.transpose(-1, -2)).unsqueeze(3) * inside, vc)  # (M, B, G, R, C, V)
        if chunks > 1:
            out = out + _across(qc, kc, vc, total, weights, length.bit_length(), dtype)
        out = out.permute(1, 0, 4, 2, 3, 5).reshape(batch, chunks * length, heads * repeat, values)
        return out[:, :steps].to(v.dtype)


def _chunks(x, length):
    """(B, T, H, ...) -> (M, B, H, C, ...), zeros after the last step."""
    padded = F.pad(x, (*(0, 0) * (x.dim() - 2), 0, -x.shape[1] % length))
    return padded.unflatten(1, (-1, length)).movedim(3, 2).movedim(1, 0).contiguous()


@functools.cache
def _levels(length, device):
    """For pairs of steps of a chunk: the level (C, C), and which pairs are of the future."""
    steps = torch.arange(length)
    level = torch.tensor([[(i ^ j).bit_length() for j in range(length)] for i in range(length)])
    future = steps[None, :] > steps[:, None]
    return level.masked_fill(future, 0).to(device), future.to(device)


@functools.cache
def _readers(chunks, device):
    """Who reads which state of earlier chunks: the chunk, the level of the block, and the block's number among the states of all levels
    in a row (only the first of two neighbouring blocks is ever read), each (readers,)."""
    reading, levels, blocks, offset = [], [], [], 0
    for level in range((chunks - 1).bit_length()):
        for n in range(chunks):
            if n >> level & 1:
                reading.append(n)
                levels.append(level)
                blocks.append(offset + (n >> level) // 2)
        offset += ((chunks - 1 >> level) + 1) // 2
    return tuple(torch.tensor(x, device=device) for x in (reading, levels, blocks))


def _across(qc, kc, vc, total, weights, first_level, dtype):
    """What chunks read from the blocks before them, (M, B, G, R, C, V)."""
    chunks, batch, heads, repeat, length, values = vc.shape
    end = total[..., -1:]
    to_end = (end - total).exp().to(dtype).unsqueeze(-1)
    written = (vc * to_end).transpose(3, 4).reshape(chunks, batch, heads, length, repeat * values)
    states = (kc.transpose(-1, -2) @ written).unflatten(-1, (repeat, values))  # (M, B, G, K, R, V)
    over = end.squeeze(-1)  # (M, B, G, R), float64
    before = F.pad(over.cumsum(0), (0,) * 6 + (1, 0))  # decay of all chunks before the n-th

    # states of the first of every two neighbouring blocks with someone behind it, level by level
    firsts, spans = [], over
    for level in range((chunks - 1).bit_length()):
        readable = ((chunks - 1 >> level) + 1) // 2
        firsts.append(states[: 2 * readable : 2])
        pairs = len(states) // 2
        factor = spans[1 : 2 * pairs : 2].exp().to(dtype)[:, :, :, None, :, None]
        states = states[: 2 * pairs : 2] * factor + states[1 : 2 * pairs : 2]
        spans = spans[: 2 * pairs : 2] + spans[1 : 2 * pairs : 2]
    reading, levels, blocks = _readers(chunks, qc.device)
    read = qc[reading] @ torch.cat(firsts)[blocks].flatten(-2)  # (readers, B, G, C, R V)
    read = read.unflatten(-1, (repeat, values)).transpose(3, 4)

    block_end = (reading >> levels) << levels
    since = (before[reading] - before[block_end]).unsqueeze(-1) + total[reading]  # from the block's end to each step
    picked = weights[reading].gather(-1, (levels + first_level).view(-1, 1, 1, 1, 1, 1).expand(*since.shape, 1))
    read = read * (since.exp().to(dtype).unsqueeze(-1) * picked)
    return torch.zeros_like(vc).index_add(0, reading, read)


def check_levels(steps: int, levels: int) -> None:
    """Raise ValueError for a sequence that needs more levels than there are."""
    if steps > 1 << (levels - 1):
        raise ValueError(f"{levels} levels reach {1 << (levels - 1)} steps, and the sequence has {steps}")


def fenwick_states(k, v, g, levels):
    """The states after T steps, (B, levels - 1, H, K, V): for every bit of T the block of so many steps, the longest first in time."""
    dtype = compute_dtype(k, v, g)
    batch, steps, heads, values = v.shape
    states = v.new_zeros(batch, levels - 1, heads, k.shape[-1], values, dtype=dtype)
    left = g.double().flip(1).cumsum(1).flip(1) - g.double()  # what decays after each step
    start = 0
    with torch.autocast(v.device.type, enabled=False):
        for bit in range(min(steps.bit_length(), levels - 1) - 1, -1, -1):
            if not steps >> bit & 1:
                continue
            block = slice(start, start + (1 << bit))
            keys = k[:, block].to(dtype).repeat_interleave(heads // k.shape[2], dim=2)
            written = v[:, block].to(dtype) * left[:, block].exp().to(dtype).unsqueeze(-1)
            states[:, bit] = torch.einsum("bthk,bthv->bhkv", keys, written)
            start = block.stop
    return states


def log_linear_step(q, k, v, g, scales, scale, states, seen):
    """One step after `seen` others: q, k (B, G, K), v (B, H, V), g (B, H), scales (B, H, L), states (B, L - 1, H, K, V).

    Returns o (B, H, V) and the new states.
    """
    check_levels(seen + 1, scales.shape[-1])
    repeat = v.shape[1] // k.shape[1]
    q, k = (x.to(states.dtype).repeat_interleave(repeat, dim=1) for x in (q * scale, k))
    held = states * g.to(states.dtype).exp()[:, None, :, None, None]
    carried = k[..., :, None] * v.to(states.dtype)[..., None, :]
    weights = scales.to(states.dtype).transpose(1, 2)[..., None, None]  # (B, L, H, 1, 1)
    view = weights[:, 0] * carried + (weights[:, 1:] * held).sum(1)  # blocks of bits that `seen` lacks are zero
    out = (q[..., :, None] * view).sum(-2)
    bit = 0
    while seen >> bit & 1:  # a carry: two blocks of a size become one of twice the size
        carried = carried + held[:, bit]
        held[:, bit] = 0
        bit += 1
    if bit < held.shape[1]:
        held[:, bit] = carried
    return out, held
