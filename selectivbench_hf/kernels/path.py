"""PaTH attention: softmax attention whose position encoding is a product of Householder-like factors of the steps between.

    o_i = sum_j p_ij v_j,   p_i = softmax over j <= i of scale (q_i^T H_i ... H_{j+1} k_j + g_{j+1} + ... + g_i),
    H_t = I - beta_t w_t w_t^T, |w_t| = 1, 0 <= beta_t <= 2

(Yang et al. 2025, arXiv:2505.16381, sections 2 and 3; the gates g <= 0 are optional). A block of steps a ... b is one unit lower
triangular system (the WY form, as for the delta rule): with M = (I + strict lower part of diag(beta) W W^T)^-1 diag(beta),

    queries from the block's start    Q' = Q - lower(Q W^T) M W                        (q_i^T H_i ... H_a)
    keys to the block's end           K' = K - (M strict_lower(W K^T))^T W             (H_b ... H_{j+1} k_j)
    scores within the block           lower(Q K^T) - lower(Q W^T) M strict_lower(W K^T)
    what the block does to keys       P = I - W^T M W                                  (H_b ... H_a, transposed)

These are batched products over all blocks, differentiated by autograd. Then, a few heads at a time, the blocks go through time with the
keys of all earlier steps, carried on by P from block to block: two large products a block. The backward pass carries them on again.

Axes: B batch, T steps with queries, S steps with keys, H key heads, R query heads that share one, C steps of a block, N blocks, K key
channels, V value channels, M = B * H.
"""

import torch
from torch.nn import functional as F

from .forgetting import SCORES, by_heads, by_steps, fading
from .gated_delta import unit_lower_inverse
from .layout import chunk_length, compute_dtype

BLOCK = 64


def path_attention(q, k, v, w, beta, g=None, scale=None, block: int = BLOCK):
    """q (B, T, H R, K), k (B, S, H, K), v (B, S, H, V), w (B, T, H, K), beta (B, T, H), log gates g (B, S, H R) or None.

    The queries belong to the last T of S steps. The keys of the S - T steps before are given as the last of those left them (returned by
    an earlier call): multiplied by the factors of all steps between. Returns the output (B, T, H R, V) of v's type and all keys as the
    last step leaves them, (B, S, H, K), which have no gradient.
    """
    scale = q.shape[-1] ** -0.5 if scale is None else scale
    dtype, batch, steps, groups = compute_dtype(q, k, v, w, beta, g), *q.shape[:2], k.shape[2]
    earlier = k.shape[1] - steps
    size = chunk_length(steps, block)
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
        q_start, k_end, within, product = transformed(*blocks, kh.reshape(blocks[1].shape))
        split = (kh.shape[0], -1)
        out, keys = _Path.apply(
            q_start.unflatten(0, split),
            k_end.reshape(kh.shape),
            product.unflatten(0, split),
            within.unflatten(0, split),
            before,
            F.pad(vh, padding),
            sums if sums is None else F.pad(sums, (0, -steps % size), mode="replicate"),
            scale,
        )
        out = by_steps(out[:, :, :steps], batch, v.dtype)
        return out, by_steps(keys[:, None, : earlier + steps], batch, k.dtype)


def transformed(q, w, beta, k):
    """What each block does, see above. q (N, R C, K), w, k (N, C, K), beta (N, C, 1): Q', K', the scores within, and P."""
    size = w.shape[1]
    repeat = q.shape[1] // size
    inverse = _Inverse.apply(torch.bmm(w * beta, w.transpose(1, 2)).tril(-1))
    solved = inverse * beta.transpose(1, 2)
    qw = torch.bmm(q, w.transpose(1, 2)).unflatten(1, (repeat, size)).tril().flatten(1, 2)
    reads = torch.bmm(qw, solved)
    wk = torch.bmm(w, k.transpose(1, 2)).tril(-1)
    within = torch.baddbmm(torch.bmm(q, k.transpose(1, 2)), reads, wk, alpha=-1)
    q_start = torch.baddbmm(q, reads, w, alpha=-1)
    k_end = torch.baddbmm(k, torch.bmm(solved, wk).transpose(1, 2), w, alpha=-1)
    identity = torch.eye(w.shape[-1], dtype=w.dtype, device=w.device)
    return q_start, k_end, within, torch.baddbmm(identity, w.transpose(1, 2), torch.bmm(solved, w), alpha=-1)


class _Inverse(torch.autograd.Function):
    """(I + A)^-1 for strictly lower triangular A."""

    @staticmethod
    def forward(ctx, strict):
        inverse = unit_lower_inverse(strict)
        ctx.save_for_backward(inverse)
        return inverse

    @staticmethod
    @torch.autograd.function.once_differentiable
    def backward(ctx, dinverse):
        (inverse,) = ctx.saved_tensors
        turned = inverse.transpose(1, 2)
        return torch.bmm(turned, torch.bmm(dinverse, turned)).tril(-1).neg_()


class _Blocks:
    """A few heads going through the blocks: the keys so far, and the attention of each block's queries."""

    def __init__(self, heads, q, k, product, within, earlier, sums, scale):
        self.q, self.k, self.product, self.within = q[heads], k[heads], product[heads], within[heads]
        self.earlier, self.sums, self.scale = earlier[heads], None if sums is None else sums[heads], scale
        self.size = within.shape[-1]
        self.above = torch.ones(self.size, self.size, dtype=torch.bool, device=q.device).triu(1)

    def seen(self, n):
        """Steps before block n."""
        return self.earlier.shape[1] + n * self.size

    def carried(self, keys, n):
        """The keys (m, S, K) before block n as it leaves them, and those of the block: (m, S + C, K)."""
        moved = torch.bmm(keys, self.product[:, n].transpose(1, 2))
        return torch.cat((moved, self.k[:, n * self.size : (n + 1) * self.size]), 1)

    def probabilities(self, keys, n):
        """(m, R C, S + C)."""
        q, first = self.q[:, n], self.seen(n)
        m, rows = q.shape[:2]
        scores = q.new_empty(m, rows // self.size, self.size, first + self.size)
        if self.sums is None:
            scores[..., :first].zero_()
            scores[..., first:] = q.new_zeros(self.size, self.size).masked_fill_(self.above, float("-inf"))
        else:
            fading(scores, self.sums[..., : first + self.size], self.above)
        scores = scores.view(m, rows, -1)
        scores[..., :first].baddbmm_(q, keys.transpose(1, 2))
        scores[..., first:] += self.within[:, n]
        return torch.softmax(scores.mul_(self.scale), -1)


class _Path(torch.autograd.Function):
    """q (M, N, R C, K), k (M, N C, K), product (M, N, K, K), within (M, N, R C, C), earlier keys (M, E, K), v (M, E + N C, V), sums of
    log gates (M, R, E + N C) -> (M, R, N C, V) and the keys in the end."""

    @staticmethod
    def forward(ctx, q, k, product, within, earlier, v, sums, scale):
        heads, count, rows = q.shape[:3]
        size = within.shape[-1]
        out = q.new_empty(heads, rows // size, count * size, v.shape[-1])
        last = v.new_empty(heads, v.shape[1], q.shape[-1])
        for part in _parts(q, v):
            blocks = _Blocks(part, q, k, product, within, earlier, sums, scale)
            keys = earlier[part]
            for n in range(count):
                p = blocks.probabilities(keys, n)
                here = torch.bmm(p, v[part, : blocks.seen(n + 1)]).unflatten(1, (-1, size))
                out[part, :, n * size : (n + 1) * size] = here
                keys = blocks.carried(keys, n)
            last[part] = keys
        ctx.save_for_backward(q, k, product, within, earlier, v, sums)
        ctx.scale = scale
        ctx.mark_non_differentiable(last)
        return out, last

    @staticmethod
    @torch.autograd.function.once_differentiable
    def backward(ctx, do, _):
        q, k, product, within, earlier, v, sums = ctx.saved_tensors
        count, size, scale = q.shape[1], within.shape[-1], ctx.scale
        dq, dk, dproduct, dwithin, dv = map(torch.empty_like, (q, k, product, within, v))
        dearlier, dsums = torch.empty_like(earlier), None if sums is None else torch.zeros_like(sums)
        dv.zero_()
        for part in _parts(q, v):
            blocks = _Blocks(part, q, k, product, within, earlier, sums, scale)
            history = [earlier[part]]
            for n in range(count - 1):
                history.append(blocks.carried(history[-1], n))
            dkeys = torch.zeros_like(v[part, :, :1]).expand(-1, -1, q.shape[-1])  # of the keys after block n
            for n in range(count - 1, -1, -1):
                keys, first, own = history.pop(), blocks.seen(n), slice(n * size, (n + 1) * size)
                p = blocks.probabilities(keys, n)
                here = do[part, :, own].flatten(1, 2)
                values = v[part, : first + size]
                dv[part, : first + size].baddbmm_(p.transpose(1, 2), here)
                dscores = torch._softmax_backward_data(torch.bmm(here, values.transpose(1, 2)), p, -1, p.dtype).mul_(
                    scale
                )
                if dsums is not None:
                    dsums[part, :, : first + size] -= dscores.unflatten(1, (-1, size)).sum(2)
                dwithin[part, n] = dscores[..., first:]
                past = dscores[..., :first]
                dq[part, n] = torch.bmm(past, keys)
                moved = dkeys[:, :first]
                dk[part, own] = dkeys[:, first:]
                dproduct[part, n] = torch.bmm(moved.transpose(1, 2), keys)
                dkeys = torch.bmm(moved, product[part, n]).baddbmm_(past.transpose(1, 2), q[part, n])
            dearlier[part] = dkeys
        return dq, dk, dproduct, dwithin, dearlier, dv, dsums, None


def _parts(q, v):
    """Slices of the heads that are computed together."""
    together = max(1, SCORES // (v.shape[1] * max(q.shape[2:])))
    return [slice(start, start + together) for start in range(0, q.shape[0], together)]
