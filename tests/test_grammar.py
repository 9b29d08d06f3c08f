"""Grammars: the random law, validity, entropy, JSON."""

import json
import math
import time

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from selectivbench_hf import Grammar, InputError


@settings(max_examples=40, deadline=None)
@given(
    letters=st.integers(2, 12),
    depth=st.integers(1, 8),
    density=st.floats(0.3, 1),
    seed=st.integers(0, 10**6),
    starts=st.integers(1, 3),
    dirichlet=st.sampled_from([None, 0.3, 1.0, 5.0]),
)
def test_random_grammars_are_valid(letters, depth, density, seed, starts, dirichlet):
    starts = min(starts, letters * depth)
    try:
        g = Grammar.random(letters, depth, density, starts, seed, dirichlet=dirichlet)
    except InputError as error:  # an unlucky corner may find none: then it says why
        assert "no valid grammar in" in str(error)
        return
    assert g.num_states == letters * depth + 1 and g.num_symbols == letters + 1
    assert len(set(g.start_states)) == starts and 0 not in g.start_states
    assert g.can_end().all()
    for s in range(g.num_states):
        successors = g.successors(s)
        assert (np.diff(successors) > 0).all()
        if s:  # a partial automaton: one successor for each letter
            assert len(set(g.symbol_of[successors])) == len(successors)
        assert g.probabilities(s).sum() == pytest.approx(1, abs=1e-12)
    again = Grammar.from_json(g.to_json())
    assert again == g and hash(again) == hash(g) and again.hash == g.hash
    assert Grammar.random(letters, depth, density, starts, seed, dirichlet=dirichlet) == g


def test_edges_follow_the_law():
    """Counts of edges, exits and instances at level te7, four seeds pooled, against binomial laws at five standard errors."""
    edges = exits = cells = states = 0
    instances = np.zeros(40)
    for seed in range(1, 5):
        g = Grammar.random(letters=40, seed=seed)
        targets = g.targets[g.indptr[1] :]
        exits += (targets == 0).sum()
        edges += (targets > 0).sum()
        instances += np.bincount((targets[targets > 0] - 1) % 40, minlength=40)
        states += g.num_states - 1
        cells += (g.num_states - 1) * 40
    assert abs(edges - 0.4 * cells) < 5 * math.sqrt(cells * 0.24)
    assert abs(exits - 0.01 * states) < 5 * math.sqrt(states * 0.01)
    chi2 = ((instances - edges / 40) ** 2 / (edges / 40)).sum()
    assert chi2 < 39 + 5 * math.sqrt(2 * 39)


def test_ids_and_labels():
    g = Grammar(2, [2, 3], [[0, 3], [3], [0], [1], [2, 5]], [1, 4])
    assert g.symbol_of.tolist() == [0, 1, 1, 2, 2, 2]
    assert [g.state_label(s) for s in range(6)] == ["#", "a1", "a2", "b1", "b2", "b3"]
    assert g.successors(0).tolist() == [1, 4] and g.successors(5).tolist() == [2, 5]
    big = Grammar.random(letters=30, depth=2, seed=1)
    assert big.state_label(59) == "l30.1"


@pytest.mark.parametrize(
    "letters, nats", [(8, 1.2), (20, 2.1), (24, 2.3), (26, 2.3), (30, 2.5), (34, 2.6), (38, 2.7), (40, 2.8)]
)
def test_entropies_of_the_catalogue(letters, nats):
    g = Grammar.random(letters=letters, seed=1)
    matrix = np.zeros((g.num_states, g.num_states))
    for s in range(g.num_states):
        matrix[s, g.successors(s)] = 1
    if letters <= 20:
        assert g.topological_entropy() == pytest.approx(math.log(np.abs(np.linalg.eigvals(matrix)).max()), abs=1e-9)
    assert round(g.topological_entropy(), 1) == pytest.approx(nats, abs=0.11)


def test_entropy_of_known_automata():
    assert Grammar(1, [1], [[0]], [1]).topological_entropy() == pytest.approx(
        0, abs=1e-12
    )  # a # a # ...: one sequence
    golden = Grammar(2, [1, 1], [[1, 2, 0], [1, 0]], [1])  # after b never b; # only leads to a
    radius = max(abs(np.linalg.eigvals(np.array([[0, 1, 0], [1, 1, 1], [1, 1, 0]]))))
    assert golden.topological_entropy() == pytest.approx(math.log(radius))


@pytest.mark.parametrize(
    "keywords, words",
    [
        (dict(letters=1), "more than the 1 states"),
        (dict(letters=2, depth=1, density=0.01, num_start_states=1), "some state could not reach"),
        (dict(density=0), "at 0 no state could reach"),
        (dict(density=-1), "density"),
        (dict(density=math.nan), "density"),
        (dict(density=1.5), "density"),
        (dict(letters=3, depth=1, num_start_states=4), "num_start_states=4 is more than the 3"),
        (dict(letters=3, depth=[1, 2]), "2 entries for 3 letters"),
        (dict(letters=0), "letters must be a whole number"),
        (dict(letters=2.5), "letters must be a whole number"),
        (dict(letters=5000), "lower letters or depth"),
        (dict(letters=40, density=1e-4), "no valid grammar in"),
        (dict(seed="x"), "seed must be a whole number"),
        (dict(dirichlet=0), "dirichlet"),
        (dict(letters=3, min_length=0), "min_length"),
    ],
)
def test_impossible_requests_end_in_a_sentence(keywords, words):
    start = time.perf_counter()
    with pytest.raises(InputError, match=words):
        Grammar.random(**keywords)
    assert time.perf_counter() - start < 30  # bounded: a hang is the fault meant, not a slow machine


@pytest.mark.parametrize("seed", range(0, 200, 10))
def test_small_corners_never_hang(seed):
    for density in (0.05, 0.5, 1.0):
        try:
            assert Grammar.random(2, 1, density, 1, seed).can_end().all()
        except InputError as error:
            assert "no valid grammar" in str(error)


def test_one_letter_works_with_one_start():
    assert Grammar.random(letters=1, num_start_states=1).num_states == 2


def test_depth_per_letter_and_many_letters():
    g = Grammar.random(letters=3, depth=[1, 2, 3], density=0.8, num_start_states=2)
    assert np.bincount(g.symbol_of).tolist() == [1, 1, 2, 3]
    assert Grammar.random(letters=60, depth=2).num_symbols == 61  # no limit of 52


def test_all_reachable():
    g = Grammar.random(letters=6, depth=3, density=0.35, num_start_states=1, seed=3, all_reachable=True)
    assert g.reachable().all()


def _json(**changes):
    data = {
        "format": "selectivbench-grammar-1",
        "letters": 2,
        "depths": [1, 1],
        "start_states": [1],
        "edges": [[2], [0, 1]],
    }
    return {**data, **changes}


@pytest.mark.parametrize(
    "data, words",
    [
        (_json(edges=[[2], [1]]), "can never reach `#`: a1, b1"),  # a cycle a -> b -> a
        (_json(start_states=[0]), "cannot be a start state"),
        (_json(start_states=[1, 1]), "distinct"),
        (_json(start_states=[]), "distinct"),
        (_json(edges=[[2], [0, 7]]), "unknown state 7"),
        (_json(edges=[[2], [0, -1]]), "unknown state -1"),
        (_json(edges=[[], [0]]), "can never reach"),
        (_json(edges=[[2, 2], [0]]), "two edges to b"),
        (_json(edges=[[2]]), "needs 2 rows"),
        (_json(edges=[[0.5], [0]]), "whole numbers"),
        (_json(depths=[1]), "1 entries for 2 letters"),
        (_json(colour="red"), "colour"),
        (_json(format="x"), "format"),
        (_json(weights=[[1], [1, 2]]), "sum to 1048576"),
        (_json(weights=[[1], [1]]), "shape of edges"),
        ("{", "not valid JSON"),
        ('{"a":' * 100_000, "not valid JSON"),
        (_json(edges=[[2], [0, 2**70]]), "below 2.63|too large"),
        (_json(weights=[[1 << 20], [1, 2**63]]), "below 2.63|too large|sum to"),
        ([1], "must be"),
    ],
)
def test_json_gets_the_same_checks(data, words):
    with pytest.raises(InputError, match=words):
        Grammar.from_json(data if isinstance(data, (str, list)) else json.dumps(data))


def test_files_that_are_no_text(tmp_path):
    (tmp_path / "bin.json").write_bytes(b"\xff\xfe\x00")
    with pytest.raises(InputError, match="it is not UTF-8 text"):
        Grammar.from_json(tmp_path / "bin.json")
    with pytest.raises(InputError, match="cannot read the grammar file 'nowhere'"):
        Grammar.from_json("nowhere")


def test_the_constructor_checks_too():
    with pytest.raises(InputError, match="can never reach `#`: a1"):
        Grammar(2, [1, 1], [[], [0]], [1])
    with pytest.raises(InputError, match="one entry for each edge"):
        Grammar(2, [1, 1], [[2], [0, 1]], [1], weights=[[1 << 20], [1 << 20]])
    with pytest.raises(InputError, match="whole numbers"):
        Grammar(2, [1, 1], [[2], [0]], [1], weights=[[1.0], [1.0]])
    unsorted = Grammar(2, [1, 1], [[2], [1, 0]], [1], weights=[[1 << 20], [1 << 18, 3 << 18]])
    assert unsorted.successors(2).tolist() == [0, 1] and unsorted.probabilities(2).tolist() == [0.75, 0.25]


def test_json_with_weights_comes_back():
    g = Grammar.from_json(_json(weights=[[1 << 20], [1 << 19, 1 << 19]]))
    assert g.probabilities(2).tolist() == [0.5, 0.5]
    assert Grammar.from_json(g.to_json()) == g and g != Grammar.from_json(_json())


def test_golden_grammars():
    """The catalogue's grammars at seed 1: a change here is a change of every byte of data and needs a new major DATA_VERSION."""
    assert [Grammar.random(letters=n).hash[:12] for n in (8, 20, 24, 26, 30, 34, 38, 40)] == GOLDEN


GOLDEN = [
    "5a8d4030be74",
    "aa0bbd6af7da",
    "26b04194b3a5",
    "a877d5a4458f",
    "8ed248cd2075",
    "3b926c272c10",
    "48793975ba6e",
    "6c978145113e",
]
