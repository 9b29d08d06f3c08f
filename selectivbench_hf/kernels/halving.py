"""Products of rows at different steps with one decay per channel between them, without dividing by cumulative products.

Every step has r readers (what its output, or its erasing, asks of the state) and w writers. The weight of writer y_j on reader x_i,
i > j, is sum_d x_id y_jd a_{j+1,d} ... a_{i,d} with decays a = exp(g) <= 1: not a plain product. Recursive halving needs no exponent
above 0: at block size s = 1, 2, 4, ..., for i in the second and j in the first half of a pair of blocks the weight is (decays from
the second block's start to i) times (decays after j to the first block's end). Both factors grow with s by multiplying with
whole-block products, and at s = C they are what the states across chunks need. Gates of 0 and of -1e4 are equally exact.

Readers that see the state before their own step's decay start without it, those that see it after start multiplied by it.

Axes: M independent chunks, C steps of a chunk, K channels, r readers and w writers of a step.
"""

import torch

from .layout import BlockView, suffix_sums


def halve(readers, writers, decay, weights=None, keep=False):
    """readers (M, C, r, K) and writers (M, C, w, K) become what the state before and after the chunk needs, in place; decay (M, C, K).

    weights (M, C r, C w): its blocks below the diagonal are filled. Returns the decay over the whole chunk (M, K), and with `keep` what
    `halve_back` needs.
    """
    length, levels, over, size = decay.shape[1], [], decay, 1
    while size < length:
        second = readers.view(-1, 2, size, *readers.shape[2:])[:, 1].flatten(1, 2)  # (M pairs, s r, K), a view
        first = writers.view(-1, 2, size, *writers.shape[2:])[:, 0].flatten(1, 2)
        if weights is not None:
            view = BlockView(weights, size, readers.shape[2], writers.shape[2])
            view.set_below(torch.bmm(second, first.transpose(1, 2)))
        over_first, over_second = over.view(-1, 2, 1, over.shape[-1]).unbind(1)
        if keep:
            levels.append((size, second.clone(), first.clone(), over_first, over_second))
        second.mul_(over_first)
        first.mul_(over_second)
        over = over_first * over_second
        size *= 2
    return over.view(-1, decay.shape[-1]), levels


def halve_back(dreaders, dwriters, dweights, levels):
    """Gradients (M, C, r, K) and (M, C, w, K) of what `halve` returned become those of what it got, in place.

    dweights (M, C r, C w): of the weights; only the blocks below the diagonal are read.
    """
    for size, readers, writers, over_first, over_second in reversed(levels):
        block = BlockView(dweights, size, dreaders.shape[2], dwriters.shape[2]).below
        second = dreaders.view(-1, 2, size, *dreaders.shape[2:])[:, 1].flatten(1, 2)
        first = dwriters.view(-1, 2, size, *dwriters.shape[2:])[:, 0].flatten(1, 2)
        # not baddbmm_: into a strided result torch multiplies one matrix at a time
        second.mul_(over_first).add_(torch.bmm(block, writers))
        first.mul_(over_second).add_(torch.bmm(block.transpose(1, 2), readers))


def gate_gradient(per_step: torch.Tensor, end: torch.Tensor, chunks: int) -> torch.Tensor:
    """Sums from each step to the end of the sequence, (N, B, H, C, K), of per_step (M, C, K), M = N B H, and end (B, H, K)."""
    length = per_step.shape[1]
    later = per_step.new_ones(length, length).triu_().expand(len(per_step), -1, -1)
    sums = torch.bmm(later, per_step).view(chunks, *end.shape[:2], *per_step.shape[1:])
    of_later_chunks = torch.cat((suffix_sums(sums[:, :, :, 0], 0)[1:], torch.zeros_like(end).unsqueeze(0))).add_(end)
    return sums.add_(of_later_chunks.unsqueeze(3))
