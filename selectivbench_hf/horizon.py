"""The horizon family: grammars that differ in how many items a model must remember, and in nothing else that a score depends on.

A state is a letter l with a memory m, an element of a group; every letter may follow every state. Letter l' leads to the state (l', m'):

    m' = m g(l')        g(l') is the letter's element of the group: each letter permutes the memory, and no window of items tells it
    m' = c(l, l')       where the pair (l, l') is a reset: the memory is known again, whatever it was

With r resets among the 64 pairs an observer of the last k items knows the state if one of its k - 1 pairs is a reset, which misses with
probability about (1 - r / 64)^(k - 1): the number of resets sets the horizon. Letters, classes, entropy and group stay the same.

A sequence is one string, which starts with the identity as memory and ends with its last item: `#` in between would be a reset.
Axes: l, l' = 0..7 letters; m = 0..d-1 elements of the group, 0 the identity; state id 1 + l d + m.
"""

from __future__ import annotations

import functools
import itertools
from dataclasses import dataclass

from .errors import InputError, unknown
from .grammar import WEIGHT_BITS, Grammar

LETTERS = 8
NUM_ITEMS = 128  # items of a sequence in the catalogue, to which k95 refers
# P(#) is as small as weights can be made: a walk of thousands of items then survives, and no h is rounded to 0
END_WEIGHT, LETTER_WEIGHT = LETTERS, (1 << WEIGHT_BITS) // LETTERS - 1
# fields of a random grammar, None here
FIXED = ("letters", "depth", "density", "num_start_states", "grammar_seed", "dirichlet")
REFUSED = (*FIXED, "all_reachable", "min_string_length", "max_string_length")

# The element of each letter, as a permutation (the images of 0, 1, ...), so that the letters generate the group.
GENERATORS = {
    # four letters flip and four do not: were there no others, the item's number would tell the parity
    "parity": ((0, 1), (1, 0)) * 4,
    # all six elements, and one more of each sign, so that the sign is a fair coin at every item
    "S3": ((0, 1, 2), (0, 2, 1), (1, 0, 2), (1, 2, 0), (2, 0, 1), (2, 1, 0), (1, 2, 0), (0, 2, 1)),
    # orders 2, 3, 5, 3, 5, 2, 3, 5
    "A5": (
        (1, 0, 3, 2, 4),
        (1, 2, 0, 3, 4),
        (1, 2, 3, 4, 0),
        (0, 1, 3, 4, 2),
        (1, 3, 0, 4, 2),
        (0, 2, 1, 4, 3),
        (3, 1, 0, 2, 4),
        (2, 4, 1, 0, 3),
    ),
}


@dataclass(frozen=True)
class Member:
    """One grammar of the family.

    group    of the memory: `parity` (2 elements), `S3` (6) or `A5` (60)
    resets   r, how many of the 64 pairs of letters are resets
    k95      items that an observer needs for 95 % at 128 items a sequence; None: no window is enough
    """

    group: str
    resets: int
    k95: int | None


MEMBERS = {
    "horizon_2": Member("A5", 61, 2),
    "horizon_4": Member("A5", 43, 4),
    "horizon_8": Member("A5", 22, 8),
    "horizon_16": Member("A5", 11, 16),
    "horizon_32": Member("A5", 5, 32),
    "horizon_inf": Member("A5", 0, None),
    "horizon_s3": Member("S3", 0, None),
    "horizon_parity": Member("parity", 0, None),
}


# -- the automaton -------------------------------------------------------------------------------------------------------


def _product(p, q):
    """The permutation p followed by q."""
    return tuple(q[i] for i in p)


@functools.cache
def elements(group: str) -> tuple[tuple[int, ...], ...]:
    """All elements of a group as permutations, in lexicographic order: the identity first."""
    found = frontier = {tuple(sorted(GENERATORS[group][0]))}
    while frontier:
        frontier = {_product(p, g) for p in frontier for g in GENERATORS[group]} - found
        found = found | frontier
    return tuple(sorted(found))


@functools.cache
def action(group: str) -> tuple[tuple[int, ...], ...]:
    """For each letter the memory that follows each memory: m -> m g(letter), indices into `elements`."""
    index = {p: m for m, p in enumerate(elements(group))}
    return tuple(tuple(index[_product(p, g)] for p in elements(group)) for g in GENERATORS[group])


def is_reset(member: Member, letter: int, following: int) -> bool:
    """Whether the pair of letters (0-based) is a reset: pairs are taken antidiagonal by antidiagonal, evenly over both letters."""
    return (letter + following) % LETTERS * LETTERS + following < member.resets


def reset_to(member: Member, letter: int, following: int) -> int:
    """The memory after a reset; another one for each letter before, or the letter alone would tell it."""
    return (following * LETTERS + letter) % len(elements(member.group))


def next_memory(member: Member, letter: int, memory: int, following: int) -> int:
    """The memory after the letter `following` in the state (letter, memory)."""
    if is_reset(member, letter, following):
        return reset_to(member, letter, following)
    return action(member.group)[following][memory]


@functools.lru_cache(maxsize=16)
def grammar(name: str, num_items: int = NUM_ITEMS) -> Grammar:
    """The grammar of a member, for sequences of `num_items` items (at least 2: a letter and `#`)."""
    member = MEMBERS[name]
    size = len(elements(member.group))
    edges = [
        [0] + [1 + to * size + next_memory(member, letter, memory, to) for to in range(LETTERS)]
        for letter, memory in itertools.product(range(LETTERS), range(size))
    ]
    weights = [[END_WEIGHT] + [LETTER_WEIGHT] * LETTERS] * len(edges)
    starts = [1 + letter * size for letter in range(LETTERS)]
    return Grammar(LETTERS, [size] * LETTERS, edges, starts, weights, min_length=num_items)


# -- as tasks ------------------------------------------------------------------------------------------------------------


def task_fields(name: str) -> dict:
    """The fields of `tasks.Task` in which a member of the catalogue differs from a random grammar."""
    return {**dict.fromkeys(FIXED), "automaton": name, "num_train": 100_000, **lengths(NUM_ITEMS)}


def lengths(num_items: int) -> dict:
    """The fields that follow from the number of items: a sequence is one string."""
    return dict.fromkeys(("num_items", "min_string_length", "max_string_length"), num_items)


def changed(task, keywords: dict) -> dict:
    """The builder keywords with what follows from them. Raises InputError for those that would change the automaton."""
    for name in keywords:
        if name in REFUSED:
            why = "a sequence is one string of num_items items" if "string" in name else "its automaton is fixed"
            raise InputError(
                f"{name} cannot be changed in {task.name}: {why}; choose another of {', '.join(MEMBERS)}, or change num_items"
            )
    return keywords | (lengths(keywords["num_items"]) if "num_items" in keywords else {})


def check(task) -> None:
    """Refuse a task whose fields contradict its automaton."""
    if not isinstance(task.automaton, str) or task.automaton not in MEMBERS:
        raise unknown("automaton", task.automaton, MEMBERS, task.name)
    for name in (*FIXED, "custom_grammar"):
        if getattr(task, name) is not None:
            raise InputError(
                f"{name} and the automaton {task.automaton} contradict each other in {task.name}; leave one out"
            )
    if task.num_items < 2:
        raise InputError(f"num_items must be at least 2 in {task.name}: a sequence is a string of letters and its `#`")
    if not task.min_string_length == task.max_string_length == task.num_items:
        raise InputError(
            f"a sequence of {task.name} is one string: min_string_length and max_string_length must be num_items={task.num_items}, "
            f"got {task.min_string_length} and {task.max_string_length}"
        )
    if task.variant != "plain":
        raise InputError(
            f"{task.name} is plain: every letter is legal in every state, so no distractor exists, got {task.variant}"
        )


def describe(task, entropy: str) -> str:
    """`horizon_8 (k95 = 8; 22 of 64 pairs of letters reset; memory A5: 60 elements; 8 letters; 2.19 nats = 3.15 bits)`."""
    member = MEMBERS[task.automaton]
    if member.k95 is None:
        reach = "no window is enough"
    else:
        # the start, which every window that reaches it knows, is a larger part of a shorter sequence
        known = f"k95 = {member.k95}; " if task.num_items == NUM_ITEMS else ""
        reach = f"{known}{member.resets} of {LETTERS**2} pairs of letters reset"
    size = len(elements(member.group))
    return f"{task.automaton} ({reach}; memory {member.group}: {size} elements; {LETTERS} letters; {entropy})"
