"""Forgetting attention: softmax attention whose scores lose g_m for every step m between key and query.

    o_i = sum_j p_ij v_j,   p_i = softmax over j <= i of (scale q_i k_j + g_{j+1} + ... + g_i),   g <= 0

(Lin et al. 2025, arXiv:2503.02130, equation 4). In blocks of queries, a few heads at a time, so that a block's scores stay in the cache;
the backward pass computes them again, and memory grows with T, not with T^2.

Axes: B batch, T queries, S keys, H key heads, R query heads that share one key head, C queries of a block, K key channels, V value
channels, M = B * H.
"""

import torch

from .layout import compute_dtype, exact_backward, suffix_sums

BLOCK = 64  # queries
SCORES = 1 << 18  # of the heads that are computed together: they stay in the second-level cache


def forgetting_attention(q, k, v, g, scale=None, block: int = BLOCK):
    """q (B, T, H R, K), k (B, S, H, K), v (B, S, H, V), log gates g (B, S, H R): the queries belong to the last T of S steps.

    Returns (B, T, H R, V) of v's type.
    """
    if scale is None:
        scale = q.shape[-1] ** -0.5
    with torch.autocast(q.device.type, enabled=False):
        return _Forgetting.apply(q, k, v, g, scale, block)


def by_heads(x: torch.Tensor, groups: int, dtype: torch.dtype) -> torch.Tensor:
    """(B, T, H R, ...) -> (M, R, T, ...), contiguous."""
    x = x.to(dtype).unflatten(2, (groups, -1))
    return x.movedim(1, 3).flatten(0, 1).contiguous()


def by_steps(x: torch.Tensor, batch: int, dtype: torch.dtype) -> torch.Tensor:
    """(M, R, T, ...) -> (B, T, H R, ...)."""
    return x.unflatten(0, (batch, -1)).movedim(3, 1).flatten(2, 3).to(dtype)


def fading(scores: torch.Tensor, sums: torch.Tensor, above: torch.Tensor) -> None:
    """Fill scores (m, R, C, S) of the last C of S steps with the sums of log gates between key and query, -inf for later keys.

    sums (m, R, S), float64, from the first step on; above (C, C), true above the diagonal.
    """
    first = scores.shape[-1] - scores.shape[-2]
    own = sums[..., first:]
    if first:
        # through the last step before the block, so that float32 does not lose what is small in what is large
        border = sums[..., first - 1 : first]
        after, before = (own - border).to(scores.dtype), (border - sums[..., :first]).to(scores.dtype)
        torch.add(after.unsqueeze(-1), before.unsqueeze(-2), out=scores[..., :first])
    within = own.unsqueeze(-1) - own.unsqueeze(-2)
    scores[..., first:].copy_(within.masked_fill_(above, float("-inf")))


class _Blocks:
    """The parts in which both passes go through the scores: some heads, a block of queries, and the keys that these see."""

    def __init__(self, q, k, sums, scale, block):
        self.q, self.k, self.sums, self.scale, self.block = q, k, sums, scale, block
        self.heads, self.repeat, self.queries = q.shape[:3]
        self.offset = k.shape[1] - self.queries
        self.above = torch.ones(block, block, dtype=torch.bool, device=q.device).triu(1)

    def __iter__(self):
        """(heads, queries, keys), slices; the keys end with the block's own steps."""
        for start in range(0, self.queries, self.block):
            stop = min(start + self.block, self.queries)
            seen = self.offset + stop
            together = max(1, SCORES // (seen * (stop - start) * self.repeat))
            for head in range(0, self.heads, together):
                yield slice(head, head + together), slice(start, stop), slice(0, seen)

    def probabilities(self, heads, queries, keys):
        """The block's queries (m, R C, K) and their attention (m, R C, S)."""
        q = self.q[heads, :, queries]
        m, repeat, rows = q.shape[:3]
        scores = q.new_empty(m, repeat, rows, keys.stop)
        fading(scores, self.sums[heads, :, keys], self.above[:rows, :rows])
        q, scores = q.reshape(m, repeat * rows, -1), scores.view(m, repeat * rows, keys.stop)
        scores.baddbmm_(q, self.k[heads, keys].transpose(1, 2), alpha=self.scale)
        return q, torch.softmax(scores, -1)


class _Forgetting(torch.autograd.Function):
    @staticmethod
    def forward(ctx, q, k, v, g, scale, block):
        dtype, batch, groups = compute_dtype(q, k, v, g), q.shape[0], k.shape[2]
        qh, kh, vh = (
            by_heads(q, groups, dtype),
            by_heads(k, groups, dtype).squeeze(1),
            by_heads(v, groups, dtype).squeeze(1),
        )
        # differences of float64 sums keep weak gates exact behind strong ones
        sums = by_heads(g, groups, torch.float64).cumsum(-1)
        out = qh.new_empty(*qh.shape[:3], vh.shape[-1])
        blocks = _Blocks(qh, kh, sums, scale, block)
        for heads, queries, keys in blocks:
            _, p = blocks.probabilities(heads, queries, keys)
            here = out[heads, :, queries]
            here.copy_(torch.bmm(p, vh[heads, keys]).view(here.shape))
        ctx.save_for_backward(qh, kh, vh, sums)
        ctx.arguments = (scale, block, batch, q.dtype, k.dtype, v.dtype, g.dtype)
        return by_steps(out, batch, v.dtype)

    @staticmethod
    @exact_backward
    def backward(ctx, do):
        qh, kh, vh, sums = ctx.saved_tensors
        scale, block, batch, q_type, k_type, v_type, g_type = ctx.arguments
        doh = by_heads(do, kh.shape[0] // batch, qh.dtype)
        dq, dk, dv, dsums = torch.empty_like(qh), torch.zeros_like(kh), torch.zeros_like(vh), torch.zeros_like(sums)
        blocks = _Blocks(qh, kh, sums, scale, block)
        for heads, queries, keys in blocks:
            q, p = blocks.probabilities(heads, queries, keys)
            here = doh[heads, :, queries].reshape(*q.shape[:2], -1)
            dv[heads, keys].baddbmm_(p.transpose(1, 2), here)
            dp = torch.bmm(here, vh[heads, keys].transpose(1, 2))
            dscores = torch._softmax_backward_data(dp, p, -1, p.dtype)
            part = dq[heads, :, queries]
            part.copy_(torch.bmm(dscores, kh[heads, keys]).view(part.shape))
            dk[heads, keys].baddbmm_(dscores.transpose(1, 2), q)
            dfading = dscores.view(*part.shape[:3], -1)
            dsums[heads, :, keys] -= dfading.sum(2, dtype=torch.float64)
            # a row of softmax's gradient sums to zero but for rounding, which the sums over time would collect
            dsums[heads, :, keys.stop - part.shape[2] : keys.stop] += dfading.sum(3, dtype=torch.float64)
        return (
            by_steps(dq.mul_(scale), batch, q_type),
            by_steps(dk.mul_(scale).unsqueeze(1), batch, k_type),
            by_steps(dv.unsqueeze(1), batch, v_type),
            by_steps(suffix_sums(dsums, -1), batch, g_type),
            None,
            None,
        )
