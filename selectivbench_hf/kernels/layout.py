"""Between fla's layout (B, T, H, D) and chunks of C steps, (N, B, H, C, D): chunk number first, so that a scan over chunks works on
contiguous memory and everything else is one batched matrix product.

Axes: B batch, T time, H heads, D channels, N chunks, C steps of a chunk.
"""

import functools

import torch


def exact_backward(backward):
    """For the backward pass of an autograd function: not differentiable again, and not reached by an autocast that is on when it runs."""

    @torch.autograd.function.once_differentiable
    @functools.wraps(backward)
    def in_own_types(ctx, *gradients):
        device = next(g.device.type for g in gradients if g is not None)
        with torch.autocast(device, enabled=False):
            return backward(ctx, *gradients)

    return in_own_types


def chunk_length(steps: int, preferred: int) -> int:
    """A power of two, at most `preferred` and no longer than needed for `steps`."""
    return min(preferred, 1 << max(0, steps - 1).bit_length())


def to_chunks(x: torch.Tensor, length: int, dtype: torch.dtype, out: torch.Tensor | None = None) -> torch.Tensor:
    """(B, T, H, ...) -> (N, B, H, C, ...) of type dtype, contiguous (or in `out`, of any strides), zeros after the last step."""
    batch, steps, heads = x.shape[:3]
    full, rest = divmod(steps, length)
    if out is None:
        out = x.new_empty(full + bool(rest), batch, heads, length, *x.shape[3:], dtype=dtype)
    if full:
        out[:full].copy_(x[:, : full * length].unflatten(1, (full, length)).movedim((1, 3), (0, 2)))
    if rest:
        out[full, :, :, :rest].copy_(x[:, full * length :].transpose(1, 2))
        out[full, :, :, rest:].zero_()
    return out


def from_chunks(x: torch.Tensor, steps: int, dtype: torch.dtype) -> torch.Tensor:
    """(N, B, H, C, ...) -> (B, T, H, ...) of type dtype, contiguous."""
    _, batch, heads, length = x.shape[:4]
    full, rest = divmod(steps, length)
    out = x.new_empty(batch, steps, heads, *x.shape[4:], dtype=dtype)
    if full:
        out[:, : full * length].unflatten(1, (full, length)).movedim((1, 3), (0, 2)).copy_(x[:full])
    if rest:
        out[:, full * length :].transpose(1, 2).copy_(x[full, :, :, :rest])
    return out


def by_chunk(chunks: int, *tensors: torch.Tensor) -> list[tuple]:
    """For each of N chunks the parts (B H, ...) of tensors (N B H, ...): views."""
    return list(zip(*(x.unflatten(0, (chunks, -1)) for x in tensors), strict=True))


def compute_dtype(*tensors: torch.Tensor | None) -> torch.dtype:
    """float64 if any is, else float32: states, gates and products are never held in half precision."""
    return torch.float64 if any(t is not None and t.dtype == torch.float64 for t in tensors) else torch.float32


def suffix_sums(x: torch.Tensor, dim: int) -> torch.Tensor:
    """Sum from each entry to the end along dim."""
    return x.flip(dim).cumsum(dim).flip(dim)


class BlockView:
    """The blocks of s by s steps on the diagonal and below it of matrices (M, C, C) over pairs of steps: for recursive halving.

    With r rows and w columns for each step the matrices are (M, C r, C w) and the blocks s r by s w.
    """

    def __init__(self, matrices: torch.Tensor, size: int, rows: int = 1, columns: int = 1):
        count, length = matrices.shape[0], matrices.shape[-1] // columns
        pairs, rows, columns = length // (2 * size), size * rows, size * columns
        on_diagonal = matrices.view(count, pairs, 2 * rows, pairs, 2 * columns).diagonal(dim1=1, dim2=3)
        self.shape = count * pairs, rows, columns
        self.quads = on_diagonal.permute(0, 3, 1, 2)  # (M, pairs, 2 s r, 2 s w), a view

    @property
    def first(self):
        """The upper block of each pair on the diagonal, (M * pairs, s r, s w): to read, it may or may not be a copy."""
        return self.quads[:, :, : self.shape[1], : self.shape[2]].reshape(self.shape)

    @property
    def second(self):
        """The lower block of each pair on the diagonal."""
        return self.quads[:, :, self.shape[1] :, self.shape[2] :].reshape(self.shape)

    @property
    def below(self):
        """The block below the first one."""
        return self.quads[:, :, self.shape[1] :, : self.shape[2]].reshape(self.shape)

    def set_below(self, values: torch.Tensor) -> None:
        """Write (M * pairs, s r, s w) below the diagonal."""
        target = self.quads[:, :, self.shape[1] :, : self.shape[2]]
        target.copy_(values.view(target.shape))
