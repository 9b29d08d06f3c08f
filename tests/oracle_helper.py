"""The law of small tasks by enumeration, from the definition alone: strings by walking the grammar, those of a wrong length thrown away."""

from collections import defaultdict

import numpy as np

import selectivbench_hf as sb
from selectivbench_hf import oracle
from selectivbench_hf.layout import load_split

TINY = {"num_train": 3, "num_validation": 1, "num_test": 40, "num_items": 5, "max_string_length": 4}


def tiny(name, seed, **fields):
    """A task small enough to enumerate: 2 letters of 2 states, 5 items, strings of up to 4; validation and test may meet."""
    law = {"letters": 2, "depth": 2, "density": 0.6, "num_start_states": 2, "grammar_seed": seed}
    return sb.get_task(name, **{**TINY, **law, **fields})


def strings(task):
    """Each string (a tuple of states that ends in 0) with its probability, given its length is within bounds."""
    grammar, found = task.grammar, {}

    def walk(states, chance):
        if states[-1] == 0:
            if len(states) >= grammar.min_length:
                found[states] = chance
        elif len(states) < task.max_string_length:
            successors = grammar.successors(states[-1])
            for s, p in zip(successors, grammar.probabilities(states[-1]), strict=True):
                walk((*states, int(s)), chance * p)

    for start in grammar.start_states:
        walk((start,), 1 / len(grammar.start_states))
    total = sum(found.values())
    return {states: chance / total for states, chance in found.items()}


def sequences(task):
    """Each sequence of states of `num_items` items with its probability."""
    one, done, grown = strings(task), defaultdict(float), {(): 1.0}
    while grown:
        longer = defaultdict(float)
        for states, chance in grown.items():
            for string, p in one.items():
                whole = (*states, *string)
                table = done if len(whole) >= task.num_items else longer
                table[whole[: task.num_items]] += chance * p
        grown = longer
    return done


def histories(task):
    """Every (probability, steps) that the law can produce; a step is (symbol seen, state, item). Blank steps say nothing and are left out."""
    legal, symbol_of = task.grammar.legal_symbols(), task.grammar.symbol_of

    def shown(states, item, chance, steps):
        if item == len(states):
            yield chance, tuple(steps)
            return
        state = states[item]
        own = [*steps, (int(symbol_of[state]), state, item)]
        forbidden = np.flatnonzero(~legal[state])
        distracts = task.variant == "nongrammatical_gaps" and item >= task.distractor_start and forbidden.size
        rate = task.distractor_rate if distracts else 0.0
        if rate < 1:
            yield from shown(states, item + 1, chance * (1 - rate), own)
        for symbol in forbidden if rate else ():
            yield from shown(states, item + 1, chance * rate / forbidden.size, [*own, (int(symbol), state, item)])

    for states, chance in sequences(task).items():
        yield from shown(states, 0, chance, [])


def normal(table):
    """Each of the laws in a table, made to sum to 1."""
    return {key: {s: w / sum(law.values()) for s, w in law.items()} for key, law in table.items()}


def by_prefix(task):
    """What was seen so far -> P(state now), and -> P(symbol of the next item), by enumeration."""
    states, following = defaultdict(lambda: defaultdict(float)), defaultdict(lambda: defaultdict(float))
    total = 0.0
    for chance, steps in histories(task):
        total += chance
        for last in range(len(steps)):
            seen = tuple(symbol for symbol, _, _ in steps[: last + 1])
            states[seen][steps[last][1]] += chance
            after = next((s for s in steps[last + 1 :] if s[2] == steps[last][2] + 1), None)
            if after:
                following[seen][after[0]] += chance
    assert abs(total - 1) < 1e-9
    return normal(states), normal(following)


def seen_so_far(task, row):
    """Of a test sequence: for each entry of the filter (item, step), the symbols up to it."""
    data = load_split(task, "test")
    out, seen = {}, ()
    for item in range(task.num_items):
        seen = (*seen, int(data.items[row, item]))
        out[item, 0] = seen
        if data.distractors is not None and data.distractors[row, item] != task.blank_id:
            seen = (*seen, int(data.distractors[row, item]))
            out[item, 1] = seen
    return out


def filter_error(task):
    """The largest difference between the filter on the test split and enumeration: of a state's posterior, and of the next symbol's law."""
    states, following = by_prefix(task)
    found = oracle.filter_split(task, "test", laws=True)
    contexts = [seen_so_far(task, row) for row in range(task.num_test)]
    said = defaultdict(dict)
    for row, item, step, state, weight in zip(
        found.rows, found.items, found.step, found.state, found.weight, strict=True
    ):
        said[row, item, step][state] = weight
    assert set(said) == {(row, *entry) for row, context in enumerate(contexts) for entry in context}
    worst = max(
        abs(law.get(s, 0.0) - states[contexts[row][item, step]].get(s, 0.0))
        for (row, item, step), law in said.items()
        for s in range(task.num_states)
    )
    for row, context in enumerate(contexts):
        for item in range(task.num_items - 1):
            laws = [following[context[item, step]] for step in (0, 1) if (item, step) in context]
            wanted = [np.mean([law.get(symbol, 0.0) for law in laws]) for symbol in range(task.num_symbols)]
            worst = max(worst, float(np.abs(found.laws[row, item] - wanted).max()))
    return worst


def ladder_by_definition(task, longest):
    """For k = 1..longest: what an observer of the last k items, who does not know where in the sequence they stand, expects on the items of
    the test split. All histories of items, pooled over where the window ends; fewer than k items: all of them, from the true start."""
    pooled = [defaultdict(lambda: defaultdict(float)) for _ in range(longest + 1)]
    start = defaultdict(lambda: defaultdict(float))
    symbol_of = task.grammar.symbol_of
    for states, chance in sequences(task).items():
        symbols = tuple(symbol_of[list(states)].tolist())
        for i in range(task.num_items):
            start[symbols[: i + 1]][states[i]] += chance
            for k in range(1, min(i + 1, longest) + 1):
                pooled[k][symbols[i - k + 1 : i + 1]][states[i]] += chance
    sure = lambda law: max(law.values()) / sum(law.values())
    rungs = []
    for k in range(1, longest + 1):
        items = [tuple(row) for row in load_split(task, "test").items.tolist()]
        best = [
            sure(pooled[k][row[i - k + 1 : i + 1]] if i >= k - 1 else start[row[: i + 1]])
            for row in items
            for i in range(task.num_items)
        ]
        rungs.append(float(np.mean(best)))
    return rungs
