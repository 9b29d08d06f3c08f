"""The horizon family: groups, resets, equal entropy, measured ladders, strings that fill a sequence, golden bytes."""

import hashlib
import itertools
import json
import sys
from importlib.util import module_from_spec, spec_from_file_location
from pathlib import Path

import numpy as np
import pytest

import selectivbench_hf as sb
from selectivbench_hf import InputError, get_task, horizon
from selectivbench_hf.builder import content_hash
from selectivbench_hf.horizon import LETTERS, MEMBERS, NUM_ITEMS, action, elements, is_reset, next_memory, reset_to
from selectivbench_hf.ladder import context_ladder
from selectivbench_hf.layout import load_split
from selectivbench_hf.oracle import ceiling, filter_split

sys.path.insert(0, str(Path(__file__).parent / "golden"))
from regenerate import SIZES

ROOT = Path(__file__).parent.parent
GOLDEN = json.loads((ROOT / "tests/golden/content_hashes.json").read_text())
FINITE = [name for name, member in MEMBERS.items() if member.k95]
GOLDEN_GRAMMARS = {  # first 16 digits of the SHA-256 of the JSON
    "horizon_2": "7f94975e2ecd6e02",
    "horizon_4": "89c358fbbc8f390e",
    "horizon_8": "5143ca83dbabc145",
    "horizon_16": "1f14bd0b73679fc5",
    "horizon_32": "dee4e9847c840134",
    "horizon_inf": "c76065b5ecdae4d4",
    "horizon_s3": "4f05fc7c85c358aa",
    "horizon_parity": "216271b05016c3a8",
}
GROUPS = {"parity": 2, "S3": 6, "A5": 60}


def states_of(name):
    """The next-state table (S - 1, LETTERS) of the built grammar, `#` left out."""
    grammar = get_task(name).grammar
    return np.array([grammar.successors(s)[1:] for s in range(1, grammar.num_states)])


# -- groups --------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("group", GROUPS)
def test_the_letters_generate_the_group_and_permute_the_memory(group):
    """The action is the group's own (right multiplication), and every memory can follow every other."""
    table, size = np.array(action(group)), GROUPS[group]
    assert len(elements(group)) == size and elements(group)[0] == tuple(range(len(elements(group)[0])))
    assert (np.sort(table, axis=1) == np.arange(size)).all()  # each letter permutes the memory
    for letter, m in itertools.product(range(LETTERS), range(size)):
        before, g = elements(group)[m], horizon.GENERATORS[group][letter]
        assert elements(group)[table[letter, m]] == tuple(g[i] for i in before)
    # regular: a letter that is not the identity moves every memory, so it moves the identity
    for row in table:
        assert (row == np.arange(size)).all() or not (row == np.arange(size)).any()


def test_what_the_groups_are():
    def order(p):
        q, n = p, 1
        while q != tuple(sorted(p)):
            q, n = tuple(p[i] for i in q), n + 1
        return n

    def even(p):
        return sum(a > b for a, b in itertools.combinations(p, 2)) % 2 == 0

    orders = [order(p) for p in elements("A5")]
    assert {n: orders.count(n) for n in set(orders)} == {1: 1, 2: 15, 3: 20, 5: 24}  # A5's, and no other group of 60
    assert {order(p) for p in horizon.GENERATORS["A5"]} == {2, 3, 5}
    # a fair coin at every item, so that the item's number tells nothing
    assert [sum(map(even, horizon.GENERATORS[g])) for g in ("parity", "S3", "A5")] == [4, 4, 8]


# -- the automaton -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", MEMBERS)
def test_the_built_grammar_is_the_automaton(name):
    member, grammar = MEMBERS[name], get_task(name).grammar
    size = GROUPS[member.group]
    assert (grammar.letters, grammar.depths, grammar.num_states) == (8, (size,) * 8, 1 + 8 * size)
    assert grammar.start_states == tuple(1 + letter * size for letter in range(8))
    assert grammar.legal_symbols()[1:].all()
    # two letters decide nearly all in horizon_2, so that it visits few of its states
    assert grammar.reachable()[1:].sum() == (93 if name == "horizon_2" else 8 * size)
    to = states_of(name) - 1
    assert (to // size == np.arange(8)).all()
    memory = (to % size).reshape(8, size, 8)  # [l, m, l']
    resets = 0
    for before, after in itertools.product(range(8), repeat=2):
        reached = memory[before, :, after]
        assert reached.tolist() == [next_memory(member, before, m, after) for m in range(size)]
        if is_reset(member, before, after):
            resets += 1
            assert (reached == reset_to(member, before, after)).all()  # synchronises
        else:
            assert (reached == action(member.group)[after]).all()
    assert resets == member.resets
    p = grammar.probabilities(1)
    assert len(set(p[1:])) == 1 and p[0] == 2**-17  # letters alike, `#` all but never


@pytest.mark.parametrize("name", FINITE)
def test_resets_are_spread_over_letters_and_memories(name):
    member = MEMBERS[name]
    table = np.array([[is_reset(member, a, b) for b in range(8)] for a in range(8)])
    for counts in (table.sum(0), table.sum(1)):
        assert counts.max() - counts.min() <= 1
    for after in range(8):  # the letter alone does not tell where a reset led
        reached = [reset_to(member, before, after) for before in range(8) if table[before, after]]
        assert len(set(reached)) == len(reached)


def test_the_family_differs_in_memory_alone():
    tasks = {name: get_task(name) for name in MEMBERS}
    entropies = [t.grammar.topological_entropy() for t in tasks.values()]
    assert np.ptp(entropies) < 1e-9 and entropies[0] == pytest.approx(np.log(4 + 24**0.5), abs=1e-9)
    a5 = [t for n, t in tasks.items() if MEMBERS[n].group == "A5"]
    assert len(a5) == 6 and {(t.num_states, t.num_symbols, t.num_items, t.blank_id) for t in a5} == {(481, 9, 128, 9)}
    assert {tuple(t.splits.values()) for t in tasks.values()} == {(100_000, 1_000, 1_000)}
    assert len({t.grammar.hash for t in tasks.values()}) == len(MEMBERS)


def test_the_grammars_are_what_they_were():
    """The JSON of each grammar; another hash is other data, and needs a new major data version."""
    hashes = {name: hashlib.sha256(horizon.grammar(name).to_json().encode()).hexdigest()[:16] for name in MEMBERS}
    assert hashes == GOLDEN_GRAMMARS
    assert get_task("horizon_8", grammar=horizon.grammar("horizon_8").to_json()).grammar == horizon.grammar(
        "horizon_8"
    )


# -- sequences -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("items", [2, 3, 40, 1000])
def test_a_sequence_is_one_string_of_uniform_letters(items):
    """Exactly `items` long, whatever the number: the weights keep h from running out of bits."""
    task = get_task("horizon_parity", num_items=items, num_train=1, num_validation=1, num_test=1)
    states = horizon_block(task)
    assert states.shape == (items, 1000) and (states[-1] == 0).all() and (states[:-1] > 0).all()
    counts = np.bincount(task.grammar.symbol_of[states[:-1]].ravel(), minlength=9)[1:]
    expected = counts.sum() / 8
    assert ((counts - expected) ** 2 / expected).sum() < 24.3  # chi-square, 7 degrees of freedom, 0.1 %
    parity = ((states[:-1] - 1) % 2).astype(int)
    flips = (task.grammar.symbol_of[states[1:-1]] - 1) % 2  # the start has the identity
    assert (parity[0] == 0).all() and (parity[1:] == np.cumsum(flips, axis=0) % 2).all()


def horizon_block(task):
    from selectivbench_hf.sampling import sample_block

    return sample_block(task.grammar, task.max_string_length, task.num_items, 1, "test", 0)


@pytest.mark.parametrize("name", MEMBERS)
def test_the_exact_filter_is_certain(name):
    task = get_task(name, num_train=1, num_validation=1, num_test=20)
    best = ceiling(task, "test")
    assert best.accuracy == 1.0 and best.expected_accuracy == pytest.approx(1, abs=1e-12)
    assert best.cross_entropy == pytest.approx(0, abs=1e-12)


def test_the_next_letter_is_a_fair_die():
    """Prediction mode asks nothing of the memory here: eight letters alike, then `#`."""
    task = get_task("horizon_4", num_train=1, num_validation=1, num_test=3, num_items=12)
    laws = filter_split(task, "test", laws=True).laws
    assert laws[:, :10, 1:] == pytest.approx(1 / 8, abs=1e-6) and laws[:, :10, 0] == pytest.approx(0, abs=1e-12)
    assert laws[:, 10, 0] == pytest.approx(1)


# -- the ladder ----------------------------------------------------------------------------------------------------------


def expected_ladder(name, longest, items=NUM_ITEMS):
    """Accuracy of an observer of the last k items for k = 1..longest, exactly, by a chain of its own: pooled occupancy and chance of no reset."""
    member = MEMBERS[name]
    size, table = GROUPS[member.group], np.array(action(member.group))
    reset = np.array([[is_reset(member, a, b) for b in range(8)] for a in range(8)])
    occupancy = np.zeros((items - 1, 8, size))
    occupancy[0, :, 0] = 1 / 8
    for i in range(1, items - 1):
        for a, b in itertools.product(range(8), repeat=2):
            if reset[a, b]:
                occupancy[i, b, reset_to(member, a, b)] += occupancy[i - 1, a].sum() / 8
            else:
                occupancy[i, b, table[b]] += occupancy[i - 1, a] / 8
    quiet, ladder = np.ones(8), []
    for k in range(1, longest + 1):
        windows = occupancy[: max(0, items - k)].sum(0)  # of k letters; those before them and `#` are known
        missed = windows.sum(1) - windows.max(1)
        ladder.append(1 - (missed * quiet).sum() / items)
        quiet = np.where(reset, 0, 1 / 8) @ quiet
    return np.array(ladder)


@pytest.mark.parametrize("name", MEMBERS)
def test_k95_is_what_the_name_says_in_expectation(name):
    k95 = MEMBERS[name].k95
    assert name == f"horizon_{k95}" or k95 is None
    ladder = expected_ladder(name, 64)
    reached = np.flatnonzero(ladder >= 0.95)
    assert (reached[0] + 1 if reached.size else None) == k95
    if k95 is None:  # flat: what a window adds is the start, known to the first k - 1 items, and `#`
        size = GROUPS[MEMBERS[name].group]
        known = np.arange(1, 65) / NUM_ITEMS
        assert np.abs(ladder - (known + (1 - known) / size)).max() < 0.02


@pytest.mark.parametrize("name", ["horizon_2", "horizon_8", "horizon_inf", "horizon_s3", "horizon_parity"])
def test_the_ladder_of_the_grammar_is_the_expected_one(name):
    task = get_task(name, num_train=1, num_validation=1, num_test=60)
    ladder = context_ladder(task, longest=9)
    expected = expected_ladder(name, len(ladder.accuracy))
    assert ladder.limit == pytest.approx(1, abs=1e-12)
    assert np.abs(np.array(ladder.accuracy) - expected).max() < 0.02  # 60 sequences


@pytest.mark.slow
@pytest.mark.parametrize("name", FINITE)
def test_k95_of_the_catalogue(name):
    """Measured on the whole test split."""
    assert context_ladder(get_task(name)).k95 == MEMBERS[name].k95


def test_the_tables_of_the_docs():
    """docs/ceilings.md says what the committed files say, and these what the automata make one expect."""
    spec = spec_from_file_location("benchmark_horizon", ROOT / "benchmarks/horizon.py")
    benchmark = module_from_spec(spec)
    spec.loader.exec_module(benchmark)
    folder, text = ROOT / "docs/ceilings", (ROOT / "docs/ceilings.md").read_text()
    measured = benchmark.measured(folder)
    assert {row["name"] for row in measured} == set(MEMBERS)
    for row in measured:
        assert row["k95"] == MEMBERS[row["name"]].k95 and row["ceiling"]["accuracy"] == 1
        expected = expected_ladder(row["name"], len(row["ladder"]))
        assert (
            np.abs(expected - [rung["accuracy"] for rung in row["ladder"]]).max() < 0.01
        )  # 1,000 sequences, 200 of the groups
    assert benchmark.ladders(measured) in text
    rows = benchmark.read(folder / benchmark.FILE)
    assert list(rows) == list(benchmark.MODELS) and benchmark.table(rows) in text


# -- as tasks ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", MEMBERS)
def test_golden_content(name, tmp_path, monkeypatch):
    import datasets

    monkeypatch.chdir(tmp_path)
    datasets.disable_progress_bars()
    made = datasets.load_dataset("selectivbench", name, cache_dir=str(tmp_path / "cache"), **SIZES)
    assert {s: content_hash([d.data.table]) for s, d in made.items()} == GOLDEN[name]


def test_words():
    assert get_task("horizon_8").describe_level() == (
        "horizon_8 (k95 = 8; 22 of 64 pairs of letters reset; memory A5: 60 elements; 8 letters; 2.19 nats = 3.15 bits)"
    )
    assert "no window is enough; memory parity: 2 elements" in get_task("horizon_parity").describe()
    assert "k95" not in get_task("horizon_8", num_items=64).describe_level()  # measured at 128 items


def test_as_json_and_with_keywords():
    task = get_task("horizon_8", num_items=64, num_train=10, train_gap=3, noise="uniform")
    assert (task.num_items, task.min_string_length, task.max_string_length) == (64, 64, 64)
    assert get_task(task.to_json()) == task and len(task.to_json()) < 2_000
    assert task.level == "horizon_8" and task.max_steps("train") == 64 * 4
    assert task.fingerprint != get_task(task, num_items=65).fingerprint
    own = get_task("horizon_8", grammar=sb.Grammar.random(letters=5))
    assert (own.name, own.automaton, own.level, own.grammar.letters) == ("horizon_8_custom", None, "custom", 5)
    fixed = {"letters", "grammar_seed", "min_string_length", "max_string_length"}
    keywords = set(sb.tasks.keywords_of("horizon_8"))
    assert not fixed & keywords and {"num_items", "train_gap", "sample_seed", "grammar"} <= keywords


@pytest.mark.parametrize(
    "call, words",
    [
        (lambda: get_task("horizon_8", letters=4), "letters cannot be changed in horizon_8: its automaton is fixed"),
        (lambda: get_task("horizon_8", max_string_length=9), "one string of num_items items"),
        (lambda: get_task("horizon_8", grammar_seed=2), "grammar_seed cannot be changed"),
        (lambda: get_task("horizon_8", num_items=1), "num_items must be at least 2"),
        (lambda: get_task("horizon_8", distractor_rate=0.1), "horizon_8 is plain"),
        (lambda: get_task("horizon_8_seed2"), "did you mean 'horizon_8'"),
        (lambda: get_task("horizon_8_noisy_gaps"), "unknown task"),
        (lambda: get_task(changed(automaton="horizon_9")), "unknown automaton 'horizon_9'"),
        (lambda: get_task(changed(letters=4)), "letters and the automaton horizon_8 contradict"),
        (lambda: get_task(changed(max_string_length=200)), "must be num_items=128, got 128 and 200"),
        (lambda: get_task(changed(variant="noisy_gaps")), "is plain"),
    ],
)
def test_bad_input_gets_a_sentence(call, words):
    with pytest.raises(InputError, match=words):
        call()


def changed(**fields):
    return get_task("horizon_8").to_dict() | fields


def test_too_short_for_disjoint_splits(tmp_path):
    from selectivbench_hf.builder import held_out_hashes

    with pytest.raises(InputError, match="meet|share|sequences"):
        held_out_hashes(get_task("horizon_8", num_items=3, num_train=10))


def test_commands_take_them(tmp_path, capsys):
    from selectivbench_hf.cli import main

    small = ["--num_train", "20", "--num_validation", "3", "--num_test", "3", "--num_items", "20"]
    assert main(["show", "horizon_s3", *small, "--plot", str(tmp_path / "s3.png")]) == 0
    assert (tmp_path / "s3.png").stat().st_size > 10_000
    assert main(["build", "horizon_4", *small, "--output", str(tmp_path / "built")]) == 0
    assert main(["build", "horizon_4", "--letters", "3", "--output", str(tmp_path / "built")]) == 2
    capsys.readouterr()
    card = (tmp_path / "built" / "README.md").read_text()
    assert "`num_items=20`" in card and "`min_string_length=" not in card
    assert (tmp_path / "built" / "horizon_4").is_dir() and len(
        load_split(get_task("horizon_4", num_test=2), "test")
    ) == 2
