"""MesaNet: what an optimal linear map from keys to values, fitted to all earlier steps, answers to the query.

    H_t = exp(g_t) H_{t-1} + beta_t k_t k_t^T,   S_t = exp(g_t) S_{t-1} + beta_t k_t v_t^T,
    o_t = S_t^T x_t  with  (H_t + diag(ridge)) x_t = q_t                                   (von Oswald et al. 2025, arXiv:2506.05233)

Both sums are simple gated linear attention. The systems of all steps are solved at once by conjugate gradients: the product of every
H_t with a vector of its own is one chunked pass over the keys, (P K^T * D) K + e^G P H, and no H_t inside a chunk is ever formed.
The gradient is that of the solution, not of the iteration: with y_t = (H_t + diag(ridge))^-1 dx_t it is dq_t = y_t and
dH_t = -y_t x_t^T (implicit differentiation), one more solve and the gradient of one product.
Loop: reference_linear.py. Axes: B batch, T time, H heads, K key channels, V value channels, N chunks, C steps of a chunk, M = N B H.
"""

import torch

from .layout import chunk_length, compute_dtype, exact_backward, from_chunks, to_chunks
from .simple_gla import chunk_decays, preferred_chunk, simple_gla

ITERATIONS = 30  # of conjugate gradients at most, as in fla
BLOCK = 1 << 19  # numbers that an iteration should find in the cache again: 2 MB in float32


def mesa(q, k, v, g, beta, ridge, key_state=None, value_state=None, iterations=ITERATIONS, chunk=None):
    """q, k (B, T, H, K), keys of at most unit length; v (B, T, H, V); g (B, T, H) log decay <= 0; beta (B, T, H) >= 0; ridge (H, K)
    above 0; key_state (B, H, K, K), symmetric, and value_state (B, H, K, V).

    Returns o (B, T, H, V) in v's type and the two last states in float32 (float64 if an input is).
    """
    dtype = compute_dtype(q, k, v, g, beta, ridge, key_state, value_state)
    chunk = chunk_length(q.shape[1], chunk or preferred_chunk(k.shape[-1], k.shape[-1]))
    with torch.autocast(q.device.type, enabled=False):
        q, k, g, beta, ridge = (t.to(dtype) for t in (q, k, g, beta, ridge))
        key_state = None if key_state is None else key_state.to(dtype)
        x, key_state = _Solve.apply(q, k, g, beta, ridge, key_state, iterations, chunk)
        out, value_state = simple_gla(x, k, v.to(dtype) * beta.unsqueeze(-1), g, 1.0, value_state, chunk)
    return out.to(v.dtype), key_state, value_state


def mesa_step(q, k, v, g, beta, ridge, key_state, value_state, iterations=ITERATIONS):
    """One step: q, k (B, H, K), v (B, H, V), g and beta (B, H), ridge (H, K), states as in `mesa`. Returns o (B, H, V) and the states."""
    dtype = compute_dtype(q, k, v, g, beta, ridge, key_state, value_state)
    with torch.autocast(q.device.type, enabled=False):
        qf, kf, vf, ridge = (t.to(dtype) for t in (q, k, v, ridge))
        decay, written = g.to(dtype).exp()[..., None, None], (kf * beta.to(dtype).unsqueeze(-1)).unsqueeze(-1)
        key_state = torch.addcmul(key_state.to(dtype) * decay, written, kf.unsqueeze(-2))
        value_state = torch.addcmul(value_state.to(dtype) * decay, written, vf.unsqueeze(-2))
        x = conjugate_gradients(lambda p: (key_state @ p.unsqueeze(-1)).squeeze(-1).addcmul_(ridge, p), qf, iterations)
        out = (x.unsqueeze(-2) @ value_state).squeeze(-2)
    return out.to(v.dtype), key_state, value_state


def conjugate_gradients(product, right, iterations):
    """x with A x = right for symmetric positive A's, one for each row of `right` (..., K); product(p) is A p, a new tensor.

    A row that is solved to the last bit stays as it is while the others go on, so that it does not depend on them.
    """
    x, residual = torch.zeros_like(right), right.clone()
    direction = right.clone()
    size = torch.linalg.vecdot(residual, residual).unsqueeze(-1)
    enough = size * torch.finfo(right.dtype).eps ** 2
    for _ in range(iterations):
        open_rows = size > enough
        if not open_rows.any():
            break
        image = product(direction)
        along = torch.linalg.vecdot(direction, image).unsqueeze(-1)
        step = torch.where(open_rows, size / along, 0)
        x.addcmul_(step, direction)
        residual.addcmul_(step, image, value=-1)
        new = torch.linalg.vecdot(residual, residual).unsqueeze(-1)
        direction.mul_(torch.where(open_rows, new / size, 0)).add_(residual)
        size = new
    return x


class _Systems:
    """H_t + diag(ridge) of all t, from arguments in the computing type. `last` (B, H, K, K) is the last H."""

    def __init__(self, k, g, beta, ridge, key_state, length):
        batch, self.steps, heads, keys = k.shape
        kc = to_chunks(k, length, k.dtype)  # (N, B, H, C, K)
        weight = to_chunks(beta, length, k.dtype)
        inside, from_start, to_end, over = chunk_decays(to_chunks(g, length, torch.float64), k.dtype)
        states = k.new_empty(len(kc) + 1, batch, heads, keys, keys)
        if key_state is None:
            states[0].zero_()
        else:
            states[0].copy_(key_state)
        written = kc * (weight * to_end).unsqueeze(-1)
        torch.bmm(written.flatten(0, 2).transpose(1, 2), kc.flatten(0, 2), out=states[1:].flatten(0, 2))
        for n in range(len(kc)):
            states[n + 1].addcmul_(states[n], over[n, :, :, None, None])
        self.shape, self.last = (len(kc), batch, heads, length, keys), states[-1].clone()
        self.keys, self.before = kc.flatten(0, 2), states[:-1].flatten(0, 2)  # (M, C, K), (M, K, K)
        self.inside = inside.mul_(weight.unsqueeze(-2)).flatten(0, 2)  # (M, C, C)
        self.from_start = from_start.flatten(0, 2).unsqueeze(-1)
        self.ridge = ridge.expand(len(kc) * batch, heads, keys).reshape(-1, 1, keys)

    def solve(self, right, iterations):
        """Every step's inverse times its row of right (B, T, H, K)."""
        x = to_chunks(right, self.shape[3], right.dtype).flatten(0, 2)
        everything = self.keys, self.before, self.inside, self.from_start, self.ridge
        size = max(1, BLOCK * len(x) // sum(part.numel() for part in (*everything, x)))
        for part, *block in zip(*(tensor.split(size) for tensor in (x, *everything)), strict=True):
            part.copy_(conjugate_gradients(lambda p, block=block: _products(p, *block), part, iterations))
        return from_chunks(x.view(self.shape), self.steps, right.dtype)


def _products(p, keys, before, inside, from_start, ridge):
    """Every step's matrix times its row of p (M, C, K)."""
    weights = torch.bmm(p, keys.transpose(1, 2)).mul_(inside)
    return torch.bmm(p, before).mul_(from_start).baddbmm_(weights, keys).addcmul_(ridge, p)


class _Solve(torch.autograd.Function):
    """x_t = (H_t + diag(ridge))^-1 q_t for all t, and the last H. Arguments in the computing type."""

    @staticmethod
    def forward(ctx, q, k, g, beta, ridge, key_state, iterations, length):
        systems = _Systems(k, g, beta, ridge, key_state, length)
        x = systems.solve(q, iterations)
        ctx.save_for_backward(x, k, g, beta, ridge, key_state)
        ctx.iterations, ctx.length = iterations, length
        return x, systems.last

    @staticmethod
    @exact_backward
    def backward(ctx, dx, dlast):
        x, k, g, beta, ridge, key_state = ctx.saved_tensors
        # made again rather than held between the passes: one product's worth of work beside those of the solve
        y = _Systems(k, g, beta, ridge, key_state, ctx.length).solve(dx, ctx.iterations)
        with torch.enable_grad():
            leaves = [t.detach().requires_grad_() for t in (k, g, beta, key_state) if t is not None]
            key, gate, weight, *state = leaves
            product, last = simple_gla(y, key, key * weight.unsqueeze(-1), gate, 1.0, *state or [None], ctx.length)
            gradients = torch.autograd.grad([product, last], leaves, [-x, dlast])
        dridge = (y * x).sum((0, 1)).neg_()
        return y, *gradients[:3], dridge, gradients[3] if state else None, None, None
