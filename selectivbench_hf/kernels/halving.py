"""Products of rows at different steps with one decay per channel between them, without dividing by cumulative products.

Every step has r readers (what its output, or its erasing, asks of the state) and w writers. The weight of writer y_j on reader x_i,
i > j, is sum_d x_id y_jd a_{j+1,d} ... a_{i,d} with decays a = exp(g) <= 1: not a plain product. Recursive halving needs no exponent
above 0: at block size s = 1, 2, 4, ..., for i in the second and j in the first half of a pair of blocks the weight is (decays from
the second block's start to i) times (decays after j to the first block's end). Both factors grow with s by multiplying with
whole-block products, and at s = C they are what the states across chunks need. Gates of 0 and of -1e4 are equally exact.

The first `decayed` readers see the state after their step's own decay, the others before it. Reader 0, the query, sees what its own
step writes; no other does. Chunks are taken a few at a time: these are many cheap passes, which should find their numbers in the
processor's cache.

Axes: M independent chunks, C steps of a chunk, K channels, r readers and w writers of a step.
"""

import torch

from .layout import BlockView, suffix_sums

BLOCK = 1 << 18  # numbers of readers and writers: a megabyte in float32


def preferred_chunk(key_channels: int, value_channels: int) -> int:
    """Chunk length: each level of halving costs as much as the states it saves, but for large ones (measured)."""
    return 16 if key_channels * value_channels <= 4096 else 32


def halve(reads, writes, decay, decayed, weights):
    """reads (M, C, r, K), writes (M, C, w, K), decay (M, C, K); weights (M, C r, C w) are filled, with zeros above the diagonal.

    Returns the readers times the decays since the chunk began, the writers times those to its end, and the decays over it (M, K)."""
    readers, writers, over = torch.empty_like(reads), torch.empty_like(writes), torch.empty_like(decay[:, 0])
    weights.zero_()
    for part in _parts(reads, writes):
        own = torch.linalg.vecdot(reads[part, :, :1], writes[part])
        _own(weights[part], reads.shape[2], writes.shape[2]).copy_(own)
        _start(reads[part], decay[part], decayed, out=readers[part])
        writers[part] = writes[part]
        over[part] = _sweep(readers[part], writers[part], decay[part], weights[part])
    return readers, writers, over


def halve_back(reads, writes, decay, decayed, dreaders, dwriters, dweights):
    """Turn, in place, the gradients of the readers (M, C, r, K) and writers (M, C, w, K) that `halve` returned into those of what it got.

    dweights (M, C r, C w): of the weights; only what `halve` wrote there is read. Returns dgates (M, C, K) and total (M, K): sums of
    the gradient of log decays over the rest of the chunk from each step, and over all of it (see gate_gradient).
    """
    dgates, total = torch.empty_like(decay), torch.empty_like(decay[:, 0])
    length = decay.shape[1]
    later = decay.new_ones(length, length).triu_()
    for part in _parts(reads, writes):
        read, write, dread, dwrite = reads[part], writes[part], dreaders[part], dwriters[part]
        levels = []
        _sweep(_start(read, decay[part], decayed), write.clone(), decay[part], keep=levels)
        while levels:
            _level_back(*levels.pop(), dread, dwrite, dweights[part])
        # row by row from here: torch is slow where two or three rows are summed, or multiplied by the same
        own = _own(dweights[part], reads.shape[2], writes.shape[2]).unsqueeze(-1)
        for i in range(decayed):
            dread[:, :, i].mul_(decay[part])
        for j in range(writes.shape[2]):
            dread[:, :, 0].addcmul_(own[:, :, j], write[:, :, j])
            dwrite[:, :, j].addcmul_(own[:, :, j], read[:, :, 0])
        per_step = read[:, :, 0] * dread[:, :, 0]
        for i in range(1, reads.shape[2]):
            per_step.addcmul_(read[:, :, i], dread[:, :, i])
        for j in range(writes.shape[2]):
            per_step.addcmul_(write[:, :, j], dwrite[:, :, j], value=-1)
        torch.bmm(later.expand(len(read), -1, -1), per_step, out=dgates[part])
        total[part] = dgates[part, 0]
        for i in range(
            decayed, reads.shape[2]
        ):  # these see the state before their step's decay and do not depend on it
            dgates[part].addcmul_(read[:, :, i], dread[:, :, i], value=-1)
    return dgates, total


def gate_gradient(dgates, total, end):
    """The gradient of log decays (N, B, H, C, K): what `halve_back` returned, all that comes in later chunks, and end (B, H, K), the
    product of the last state and its gradient."""
    shape = -1, *end.shape[:2]
    dgates, total = dgates.unflatten(0, shape), total.unflatten(0, shape)
    later = torch.cat((suffix_sums(total, 0)[1:], torch.zeros_like(end).unsqueeze(0))).add_(end)
    return dgates.add_(later.unsqueeze(3))


def _parts(reads, writes):
    """Slices of about BLOCK numbers."""
    each = max(1, BLOCK // max(1, reads[0].numel() + writes[0].numel()))
    return [slice(first, min(first + each, len(reads))) for first in range(0, len(reads), each)]


def _own(weights, readers, writers):
    """The weights of each step's writers on its own query: (M, C, w), a view of (M, C r, C w)."""
    length = weights.shape[2] // writers
    return weights.view(-1, length, readers, length, writers)[:, :, 0].diagonal(dim1=1, dim2=2).transpose(1, 2)


def _start(reads, decay, decayed, out=None):
    """The readers before the first level."""
    out = torch.empty_like(reads) if out is None else out
    for i in range(reads.shape[2]):
        if i < decayed:
            torch.mul(reads[:, :, i], decay, out=out[:, :, i])
        else:
            out[:, :, i] = reads[:, :, i]
    return out


def _halves(readers, writers, size):
    """The readers in the second and the writers in the first block of each pair, (M pairs, s r, K) and (M pairs, s w, K), views."""
    second = readers.view(-1, 2, size, *readers.shape[2:])[:, 1].flatten(1, 2)
    return second, writers.view(-1, 2, size, *writers.shape[2:])[:, 0].flatten(1, 2)


def _sweep(readers, writers, decay, weights=None, keep=None):
    """All levels in place. `keep` gets what _level_back needs of each. Returns the decay over the whole chunk (M, K)."""
    over, size = decay, 1
    while size < decay.shape[1]:
        second, first = _halves(readers, writers, size)
        if weights is not None:
            view = BlockView(weights, size, readers.shape[2], writers.shape[2])
            view.set_below(torch.bmm(second, first.transpose(1, 2)))
        over_first, over_second = over.view(-1, 2, 1, over.shape[-1]).unbind(1)
        if keep is not None:
            keep.append((size, second.clone(), first.clone(), over_first, over_second))
        _multiply(second, over_first)
        _multiply(first, over_second)
        over = over_first * over_second
        size *= 2
    return over.view(-1, decay.shape[-1])


def _level_back(size, readers, writers, over_first, over_second, dreaders, dwriters, dweights):
    block = BlockView(dweights, size, dreaders.shape[2], dwriters.shape[2]).below
    second, first = _halves(dreaders, dwriters, size)
    _multiply(second, over_first)
    _multiply(first, over_second)
    if size > 1:
        # not baddbmm_: into a strided result torch multiplies one matrix at a time
        second.add_(torch.bmm(block, writers))
        first.add_(torch.bmm(block.transpose(1, 2), readers))
        return
    # products of one or two rows: torch has no fast one
    for i in range(block.shape[1]):
        for j in range(block.shape[2]):
            second[:, i].addcmul_(block[:, i, j, None], writers[:, j])
            first[:, j].addcmul_(block[:, i, j, None], readers[:, i])


def _multiply(rows, factor):
    """rows (P, n, K) times factor (P, 1, K) in place: for few rows one at a time, which leaves torch one loop less."""
    if rows.shape[1] > 4:
        rows.mul_(factor)
        return
    for row in rows.unbind(1):
        row.mul_(factor[:, 0])
