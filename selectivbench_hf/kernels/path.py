"""PaTH attention: softmax attention whose position encoding is a product of Householder-like factors of the steps between.

    o_i = sum_j p_ij v_j,   p_i = softmax over j <= i of scale (q_i^T H_i ... H_{j+1} k_j + g_{j+1} + ... + g_i),
    H_t = I - beta_t w_t w_t^T, |w_t| = 1, 0 <= beta_t <= 2

(Yang et al. 2025, arXiv:2505.16381, sections 2 and 3; the gates g <= 0 are optional). A block of steps a ... b is one unit lower
triangular system (the WY form, as for the delta rule): with M = (I + strict lower part of diag(beta) W W^T)^-1 diag(beta),

    queries from the block's start    Q' = Q - lower(Q W^T) M W                        (q_i^T H_i ... H_a)
    keys to the block's end           K' = K - (M strict_lower(W K^T))^T W             (H_b ... H_{j+1} k_j)
    scores within the block           lower(Q K^T) - lower(Q W^T) M strict_lower(W K^T)
    what the block does to keys       k^T P, P = I - (M W)^T W                         (P^T = H_b ... H_a)

computed for a few blocks at a time, so that the many small matrices stay in the cache. Then, a few heads at a time, the blocks go through
time with the keys of all earlier steps, carried on by P from block to block: two large products a block. The backward passes compute
most of this again.

Axes: B batch, T steps with queries, S steps with keys, H key heads, R query heads that share one, C steps of a block, N blocks, K key
channels, V value channels, M = B * H.
"""

import math

import torch
from torch.nn import functional as F

from .forgetting import SCORES, by_heads, by_steps, fading
from .gated_delta import unit_lower_inverse
from .layout import chunk_length, compute_dtype, exact_backward

LONGEST_BLOCK = 64
SHORTEST_STRETCH = 16  # blocks whose keys the backward pass holds at once


def path_attention(q, k, v, w, beta, g=None, scale=None, block: int | None = None):
    """q (B, T, H R, K), k (B, S, H, K), v (B, S, H, V), w (B, T, H, K), beta (B, T, H), log gates g (B, S, H R) or None.

    The queries belong to the last T of S steps. The keys of the S - T steps before are given as the last of those left them (returned by
    an earlier call): multiplied by the factors of all steps between. Returns the output (B, T, H R, V) of v's type and all keys as the
    last step leaves them, (B, S, H, K) in float32 (float64 if an input is), which have no gradient.
    """
    scale = q.shape[-1] ** -0.5 if scale is None else scale
    dtype, batch, steps, groups = compute_dtype(q, k, v, w, beta, g), *q.shape[:2], k.shape[2]
    earlier = k.shape[1] - steps
    # within a block the work grows with C, between blocks with K / C
    size = chunk_length(steps, block or min(LONGEST_BLOCK, max(16, 1 << (q.shape[-1] - 1).bit_length())))
    padding = (0, 0, 0, -steps % size)
    with torch.autocast(q.device.type, enabled=False):
        kh, vh = by_heads(k, groups, dtype).squeeze(1), by_heads(v, groups, dtype).squeeze(1)
        sums = None if g is None else by_heads(g, groups, torch.float64).cumsum(-1)
        before, kh = kh[:, :earlier], F.pad(kh[:, earlier:], padding)
        blocks = [
            F.pad(by_heads(x, groups, dtype), padding)
            .unflatten(2, (-1, size))
            .transpose(1, 2)
            .flatten(0, 1)
            .flatten(1, 2)
            for x in (q, w, beta.unsqueeze(-1))
        ]
        starts, ends = _Transformed.apply(*blocks, kh.reshape(blocks[1].shape))
        split = (kh.shape[0], -1)
        out, keys = _Path.apply(
            starts.unflatten(0, split),
            ends.unflatten(0, split),
            before,
            F.pad(vh, padding),
            sums if sums is None else F.pad(sums, (0, -steps % size), mode="replicate"),
            scale,
        )
        out = by_steps(out[:, :, :steps], batch, v.dtype)
        return out, by_steps(keys[:, None, : earlier + steps], batch, dtype)


class _Transformed(torch.autograd.Function):
    """q (N, R C, K), w (N, C, K), beta (N, C, 1), k (N, C, K) -> [scores within the block, Q'] (N, R C, C + K), [K'; P] (N, C + K, K).

    The products are taken side by side: with E = [strict_lower(W K^T), W] and R = lower(Q W^T) M, the two are
    [Q K^T, Q] - R E and [K; I] - (M E)^T W.
    """

    @staticmethod
    def forward(ctx, q, w, beta, k):
        count, size, width = w.shape
        rows = q.shape[1]
        starts, ends = q.new_empty(count, rows, size + width), q.new_empty(count, size + width, width)
        inverses = q.new_empty(count, size, size)
        for part in _in_cache(q, w):
            _, _, products = _products(q[part], w[part], k[part])
            inverses[part] = unit_lower_inverse(products[:, rows:, :size].tril(-1).mul_(beta[part]))
            _, sides, solved, reads = _solved(products, w[part], beta[part], inverses[part])
            start, end = starts[part], ends[part]
            start[..., :size], start[..., size:] = products[:, :rows, size:], q[part]
            start -= torch.bmm(reads, sides)
            torch.bmm(torch.bmm(solved, sides).transpose(1, 2), w[part], out=end).neg_()
            end[:, :size] += k[part]
            end[:, size:].diagonal(dim1=1, dim2=2).add_(1)
        ctx.save_for_backward(q, w, beta, k, inverses)
        return starts, ends

    @staticmethod
    @exact_backward
    def backward(ctx, dstarts, dends):
        q, w, beta, k, inverses = ctx.saved_tensors
        size, rows = w.shape[1], q.shape[1]
        dq, dw, dbeta, dk = map(torch.empty_like, (q, w, beta, k))
        for part in _in_cache(q, w):
            dstart, dend, inverse, b = dstarts[part], dends[part], inverses[part], beta[part]
            left, right, products = _products(q[part], w[part], k[part])
            qw, sides, solved, reads = _solved(products, w[part], b, inverse)
            dreads = torch.bmm(dstart, sides.transpose(1, 2)).neg_()
            dboth = torch.bmm(w[part], dend.transpose(1, 2)).neg_()  # of M E
            dsides = torch.bmm(solved.transpose(1, 2), dboth).baddbmm_(reads.transpose(1, 2), dstart, alpha=-1)
            dsolved = torch.bmm(qw.transpose(1, 2), dreads).baddbmm_(dboth, sides.transpose(1, 2))
            turned = inverse.transpose(1, 2)
            dstrict = torch.bmm(turned, torch.bmm(dsolved * b.transpose(1, 2), turned)).tril_(-1).neg_()
            dproducts = torch.empty_like(products)
            dproducts[:, :rows, :size] = _lower(torch.bmm(dreads, solved.transpose(1, 2)), size)
            dproducts[:, :rows, size:] = dstart[..., :size]
            torch.mul(dstrict, b, out=dproducts[:, rows:, :size])
            dproducts[:, rows:, size:] = dsides[..., :size].tril(-1)
            dleft, dright = torch.bmm(dproducts, right), torch.bmm(dproducts.transpose(1, 2), left)
            torch.add(dleft[:, :rows], dstart[..., size:], out=dq[part])
            torch.add(dright[:, size:], dend[:, :size], out=dk[part])
            total = dleft[:, rows:].add_(dright[:, :size]).add_(dsides[..., size:])
            torch.sub(total, torch.bmm(torch.bmm(solved, sides), dend), out=dw[part])
            erased = (dstrict * products[:, rows:, :size]).sum(-1, keepdim=True)
            torch.add((inverse * dsolved).sum(1).unsqueeze(-1), erased, out=dbeta[part])
        return dq, dw, dbeta, dk


def _in_cache(q, w):
    """Slices of the blocks that are computed together: few enough for the cache, and enough that calls do not count."""
    numbers = (q.shape[1] + w.shape[1]) * (w.shape[1] + w.shape[2])
    together = max(1, SCORES // numbers)
    return [slice(start, start + together) for start in range(0, w.shape[0], together)]


def _products(q, w, k):
    """[Q; W], [W; K] and their products [Q W^T, Q K^T; W W^T, W K^T] (N, R C + C, 2 C)."""
    left, right = torch.cat((q, w), 1), torch.cat((w, k), 1)
    return left, right, torch.bmm(left, right.transpose(1, 2))


def _solved(products, w, beta, inverse):
    """lower(Q W^T), E, M and R."""
    size = w.shape[1]
    qw = _lower(products[:, :-size, :size], size)
    sides = torch.cat((products[:, -size:, size:].tril(-1), w), -1)
    solved = inverse * beta.transpose(1, 2)
    return qw, sides, solved, torch.bmm(qw, solved)


def _lower(x, size):
    """The lower part of each (C, C) of (N, R C, C)."""
    return x.unflatten(1, (-1, size)).tril().flatten(1, 2)


class _Blocks:
    """A few heads going through the blocks: the keys so far, and the attention of each block's queries."""

    def __init__(self, heads, starts, ends, earlier, sums, scale):
        self.starts, self.ends, self.earlier, self.scale = starts[heads], ends[heads], earlier[heads], scale
        self.sums = None if sums is None else sums[heads]
        self.size = ends.shape[2] - ends.shape[3]
        self.above = torch.ones(self.size, self.size, dtype=torch.bool, device=ends.device).triu(1)

    def seen(self, n):
        """Steps before block n."""
        return self.earlier.shape[1] + n * self.size

    def queries(self, n):
        """Those of block n from its start, (m, R C, K)."""
        return self.starts[:, n, :, self.size :]

    def product(self, n):
        """What block n does to keys, (m, K, K)."""
        return self.ends[:, n, self.size :]

    def carried(self, keys, n):
        """The keys (m, S, K) before block n as it leaves them, and its own: (m, S + C, K)."""
        return torch.cat((torch.bmm(keys, self.product(n)), self.ends[:, n, : self.size]), 1)

    def backwards(self):
        """(n, the keys before block n) from the last block to the first. All these keys are T / 2C times the sequence: they are computed in
        stretches of about the root of N blocks, for which every first block's is kept."""
        count = self.starts.shape[1]
        length = max(SHORTEST_STRETCH, math.isqrt(count))
        keys = self.earlier
        kept = [keys]
        for n in range((count - 1) // length * length):
            keys = self.carried(keys, n)
            if (n + 1) % length == 0:
                kept.append(keys)
        while kept:
            stretch, first = [kept.pop()], len(kept) * length
            for n in range(first, min(first + length, count) - 1):
                stretch.append(self.carried(stretch[-1], n))
            while stretch:
                keys = stretch.pop()
                yield first + len(stretch), keys

    def probabilities(self, keys, n):
        """(m, R C, S + C)."""
        q, first = self.queries(n), self.seen(n)
        m, rows = q.shape[:2]
        scores = q.new_empty(m, rows // self.size, self.size, first + self.size)
        if self.sums is None:
            scores[..., :first].zero_()
            scores[..., first:] = q.new_zeros(self.size, self.size).masked_fill_(self.above, float("-inf"))
        else:
            fading(scores, self.sums[..., : first + self.size], self.above)
        scores = scores.view(m, rows, -1)
        scores[..., :first].baddbmm_(q, keys.transpose(1, 2))
        scores[..., first:] += self.starts[:, n, :, : self.size]
        return torch.softmax(scores.mul_(self.scale), -1)


class _Path(torch.autograd.Function):
    """starts (M, N, R C, C + K) and ends (M, N, C + K, K) of _Transformed, earlier keys (M, E, K), v (M, E + N C, V), sums of log gates
    (M, R, E + N C) or None -> (M, R, N C, V) and the keys in the end (M, E + N C, K)."""

    @staticmethod
    def forward(ctx, starts, ends, earlier, v, sums, scale):
        heads, count, size, rows = *starts.shape[:2], ends.shape[2] - ends.shape[3], starts.shape[2]
        out = v.new_empty(heads, rows // size, count * size, v.shape[-1])
        last = v.new_empty(*v.shape[:2], ends.shape[-1])
        for part in _parts(starts, v):
            blocks = _Blocks(part, starts, ends, earlier, sums, scale)
            keys = earlier[part]
            for n in range(count):
                p = blocks.probabilities(keys, n)
                here = torch.bmm(p, v[part, : blocks.seen(n + 1)])
                out[part, :, n * size : (n + 1) * size] = here.unflatten(1, (-1, size))
                keys = blocks.carried(keys, n)
            last[part] = keys
        ctx.save_for_backward(starts, ends, earlier, v, sums)
        ctx.scale = scale
        ctx.mark_non_differentiable(last)
        return out, last

    @staticmethod
    @exact_backward
    def backward(ctx, do, _):
        starts, ends, earlier, v, sums = ctx.saved_tensors
        dstarts, dends, dearlier, dv = *map(torch.empty_like, (starts, ends, earlier)), torch.zeros_like(v)
        dsums = None if sums is None else torch.zeros_like(sums)
        size = ends.shape[2] - ends.shape[3]
        for part in _parts(starts, v):
            blocks = _Blocks(part, starts, ends, earlier, sums, ctx.scale)
            dkeys = torch.zeros_like(v[part, :, :1]).expand(-1, -1, ends.shape[-1])  # of the keys after block n
            for n, keys in blocks.backwards():
                first, seen = blocks.seen(n), slice(0, blocks.seen(n + 1))
                p = blocks.probabilities(keys, n)
                here = do[part, :, n * size : (n + 1) * size].flatten(1, 2)
                dv[part, seen].baddbmm_(p.transpose(1, 2), here)
                dp = torch.bmm(here, v[part, seen].transpose(1, 2))
                dscores = torch._softmax_backward_data(dp, p, -1, p.dtype).mul_(ctx.scale)
                if dsums is not None:
                    dfading = dscores.unflatten(1, (-1, size))
                    dsums[part, :, seen] -= dfading.sum(2, dtype=torch.float64)
                    dsums[part, :, first : seen.stop] += dfading.sum(3, dtype=torch.float64)  # see forgetting.py
                past, carried = dscores[..., :first], dkeys[:, :first]
                dstarts[part, n, :, :size] = dscores[..., first:]
                dstarts[part, n, :, size:] = torch.bmm(past, keys)
                dends[part, n, :size] = dkeys[:, first:]
                dends[part, n, size:] = torch.bmm(keys.transpose(1, 2), carried)
                dkeys = torch.bmm(carried, blocks.product(n).transpose(1, 2))
                dkeys.baddbmm_(past.transpose(1, 2), blocks.queries(n))
            dearlier[part] = dkeys
        return dstarts, dends, dearlier, dv, dsums, None


def _parts(starts, v):
    """Slices of the heads that are computed together."""
    together = max(1, SCORES // (v.shape[1] * starts.shape[2]))
    return [slice(start, start + together) for start in range(0, starts.shape[0], together)]
