"""What counting alone learns from the training split: the most frequent state after the last k items, shorter contexts where those are unseen.

Which steps are items is known, as on the context ladder (ladder.py), so gaps, noise and distractors change nothing.

Axes: N sequences, T items, S states, V symbols.
"""

from __future__ import annotations

import numpy as np

from .layout import draw_block, load_split
from .sampling import block_size

SEQUENCES = 20_000  # of the training split that are counted: 4 million items, seconds
LONGEST = 4  # items
LARGEST_KEY = 2**62  # of a context of one symbol more, with a state


def k_grams(task, split: str = "test", sequences: int = SEQUENCES) -> dict[str, float]:
    """Share of a split's items right by `majority` (one state for everything) and by `1-gram` to `4-gram`, counted on the first `sequences`
    training sequences. A k-gram falls back on the (k-1)-gram at contexts that it has not seen, and at the start, where there are fewer items.
    """
    states = first_of_train(task, sequences).astype(np.int64)
    test = load_split(task, split).states.astype(np.int64)
    symbol_of = task.grammar.symbol_of
    symbols, test_symbols = symbol_of[states], symbol_of[test]
    said = np.full(test.shape, np.bincount(states.ravel()).argmax())
    out = {"majority": float((said == test).mean())}
    context, test_context = np.zeros_like(symbols), np.zeros_like(test_symbols)
    for k in range(1, min(LONGEST, task.num_items) + 1):
        # one number for the k items that end at k - 1, k, ..., T - 1
        context = context * task.num_symbols + symbols[:, k - 1 :]
        test_context = test_context * task.num_symbols + test_symbols[:, k - 1 :]
        if int(context.max(initial=0)) >= LARGEST_KEY // (task.num_symbols * task.num_states):
            context, test_context = _renumbered(context, test_context)
        known, best = _most_frequent(context, states[:, k - 1 :], task.num_states)
        place = np.minimum(np.searchsorted(known, test_context), known.size - 1)
        said[:, k - 1 :] = np.where(known[place] == test_context, best[place], said[:, k - 1 :])
        out[f"{k}-gram"] = float((said == test).mean())
        context, test_context = context[:, :-1], test_context[:, :-1]
    return out


def first_of_train(task, sequences: int) -> np.ndarray:
    """(N, T) states of the first training sequences, without the rest of the split."""
    count, block = min(sequences, task.num_train), block_size("train")
    parts = [draw_block(task, "train", b, 0, min(block, count - b * block)) for b in range(-(-count // block))]
    return np.concatenate([part.states for part in parts])


def _renumbered(context, test_context):
    """The same contexts under small numbers, so that a longer one fits 63 bits."""
    _, small = np.unique(np.concatenate([context.ravel(), test_context.ravel()]), return_inverse=True)
    return small[: context.size].reshape(context.shape), small[context.size :].reshape(test_context.shape)


def _most_frequent(context, states, num_states):
    """The contexts that occur, ascending, and the state that each is most often in (the lowest of equals)."""
    key, count = np.unique(context.ravel() * num_states + states.ravel(), return_counts=True)
    context, state = np.divmod(key, num_states)
    order = np.lexsort((state, -count, context))
    first = order[np.flatnonzero(np.diff(context[order], prepend=-1))]
    return context[first], state[first]
