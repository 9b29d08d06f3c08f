"""The law of strings against brute force, the sampler against the law, and the streams."""

import numpy as np
import pytest

from selectivbench_hf import Grammar, InputError, sampling
from selectivbench_hf.sampling import StringLaw, sample_block, string_law
from selectivbench_hf.streams import GENERATOR_VERSION, raw32, stream, stream_key

SMALL = Grammar(2, [2, 1], [[1, 3], [0, 2, 3], [0, 1]], [1, 2, 3])
SKEWED = Grammar(
    2,
    [2, 1],
    [[1, 3], [0, 2, 3], [0, 1]],
    [1, 2],
    weights=[[1 << 19, 1 << 19], [1 << 10, (1 << 19) - (1 << 10), 1 << 19], [1 << 4, (1 << 20) - (1 << 4)]],
)


def strings(grammar, longest):
    """Every string of at most `longest` items with its probability before conditioning, by brute force."""
    found = []

    def walk(path, p):
        if len(path) > longest:
            return
        if path[-1] == 0:
            if len(path) >= grammar.min_length:
                found.append((path, p))
            return
        for s, q in zip(grammar.successors(path[-1]), grammar.probabilities(path[-1])):
            walk([*path, int(s)], p * q)

    for s in grammar.start_states:
        walk([s], 1 / len(grammar.start_states))
    return found


@pytest.mark.parametrize(
    "grammar, longest",
    [
        (SMALL, 7),
        (SMALL, 2),
        (SKEWED, 8),
        (Grammar.random(4, 2, 0.5, 2, 3), 6),
        (Grammar(2, [2, 1], [[1, 3], [0, 2, 3], [0, 1]], [1, 2, 3], min_length=4), 7),
    ],
)
def test_law_equals_enumeration(grammar, longest):
    law, kept = StringLaw(grammar, longest), strings(grammar, longest)
    total = sum(p for _, p in kept)
    starts, lengths, steps = {}, np.zeros(longest + 1), {}
    for path, p in kept:
        starts[path[0]] = starts.get(path[0], 0) + p / total
        lengths[len(path)] += p / total
        for at in range(len(path) - 1):
            row = steps.setdefault((path[at], at + 1), {})
            row[path[at + 1]] = row.get(path[at + 1], 0) + p / total
    assert np.allclose(law.start_probabilities(), [starts.get(s, 0) for s in grammar.start_states], atol=1e-9)
    assert np.allclose(law.length_probabilities(), lengths, atol=1e-9)
    for (state, position), row in steps.items():
        expected = np.array([row.get(s, 0) for s in grammar.successors(state)])
        assert np.allclose(law.transition_probabilities(state, position), expected / expected.sum(), atol=1e-9)
    # h_k of the protocol, k = L - t steps left
    for t in range(1, longest + 1):
        for s in range(1, grammar.num_states):
            reach = sum(p for path, p in _from(grammar, s, longest - t, grammar.min_length - t))
            assert law.survival[t, s] / 2**40 == pytest.approx(reach, abs=1e-9)


def _from(grammar, state, most, least):
    out = []

    def walk(s, p, used):
        if s == 0:
            if used >= least:
                out.append((used, p))
        elif used < most:
            for n, q in zip(grammar.successors(s), grammar.probabilities(s)):
                walk(int(n), p * q, used + 1)

    walk(state, 1.0, 0)
    return out


def split_strings(states):
    """Whole strings of the sequences (N, T): (N, T) position of each item in its string; the last, cut one included."""
    position = np.zeros(states.shape, dtype=np.int64)
    position[:, 0] = 1
    for t in range(1, states.shape[1]):
        position[:, t] = np.where(states[:, t - 1] == 0, 1, position[:, t - 1] + 1)
    return position


def chi2(observed, expected, totals=1):
    """How many standard deviations the chi-square statistic lies above its mean; cells below 5 expected are pooled.

    `totals`: how many totals of the expectation are taken from the observation.
    """
    observed, expected = np.asarray(observed, float).ravel(), np.asarray(expected, float).ravel()
    assert not observed[expected == 0].any(), "something impossible was drawn"
    small = expected < 5
    o, e = np.append(observed[~small], observed[small].sum()), np.append(expected[~small], expected[small].sum())
    o, e = o[e > 0], e[e > 0]
    df = max(len(o) - totals, 1)
    return (((o - e) ** 2 / e).sum() - df) / np.sqrt(2 * df)


def transition_counts(grammar, states, position, at):
    """(S, S) counts of transitions out of items at position `at` of their string."""
    here = (position[:, :-1] == at) & (states[:, :-1] != 0)
    return np.bincount(
        states[:, :-1][here].astype(np.int64) * grammar.num_states + states[:, 1:][here],
        minlength=grammar.num_states**2,
    ).reshape(grammar.num_states, -1)


def expected_transitions(law, counts, at, tilt=0.0, conditioned=True):
    grammar = law.grammar
    out = np.zeros(counts.shape)
    for s in np.flatnonzero(counts.sum(1)):
        p = law.transition_probabilities(int(s), at) if conditioned else grammar.probabilities(int(s))
        p = p * (1 + tilt * (-1) ** np.arange(len(p)))
        out[s, grammar.successors(int(s))] = counts[s].sum() * p / p.sum()
    return out


@pytest.fixture(scope="module", params=["lite", "dirichlet", "inversion"])
def drawn(request):
    """A law and 50,000 sequences of 64 items of it, through proposal and acceptance, with weights, and by inversion alone."""
    grammar = Grammar.random(letters=8, seed=1, dirichlet=0.7 if request.param == "dirichlet" else None)
    with pytest.MonkeyPatch.context() as patch:
        if request.param == "inversion":
            patch.setattr(sampling, "ROUNDS", 1)
            patch.setattr(sampling._Walk, "_propose", _reject_all)
        states = string_law(grammar, 64).sample(50_000, 64, stream("test", request.param)).T
    return string_law(grammar, 64), states, split_strings(states)


def _reject_all(self, state, base, row, full=False):
    self.proposal = np.zeros(state.size, np.int64)
    return np.zeros(state.size, bool)


def test_start_states_follow_the_law(drawn):
    law, states, _ = drawn
    starts = list(law.grammar.start_states)
    observed = np.bincount(states[:, 0], minlength=law.grammar.num_states)[starts]
    expected = law.start_probabilities() * len(states)
    assert observed.sum() == len(states) and chi2(observed, expected) < 5
    tilted = expected * (1 + 0.04 * (-1) ** np.arange(len(starts)))
    assert chi2(observed, tilted / tilted.sum() * len(states)) > 5  # a law that is off by 4 % fails


def test_string_lengths_follow_the_law(drawn):
    law, states, _ = drawn
    first_end = np.argmax(states == 0, axis=1) + 1  # length of each sequence's first string; all end within 64
    assert (states == 0).any(1).all()
    observed = np.bincount(first_end, minlength=65)
    expected = law.length_probabilities() * len(states)
    assert law.length_probabilities().sum() == pytest.approx(1) and chi2(observed, expected) < 5
    shifted = np.roll(expected, 1)  # off by one
    shifted[:2] = expected[:2]
    with pytest.raises(AssertionError):
        assert chi2(observed, shifted) < 5


@pytest.mark.parametrize("at", [1, 2, 10, 40, 60, 63])
def test_transitions_by_position_follow_the_law(drawn, at):
    law, states, position = drawn
    counts = transition_counts(law.grammar, states, position, at)
    rows = int((counts.sum(1) >= 20).sum())  # rows with fewer are pooled with others for the most part
    assert -5 < chi2(counts, expected_transitions(law, counts, at), rows) < 5
    if counts.sum() > 50_000:
        assert chi2(counts, expected_transitions(law, counts, at, tilt=0.05), rows) > 5  # 5 % is seen


def test_the_naive_law_is_rejected(drawn):
    """Walking by p(s'|s) and keeping what comes, without conditioning on the length, is another law."""
    law, states, position = drawn
    seen = [transition_counts(law.grammar, states, position, at) for at in (40, 60, 62)]
    assert max(chi2(c, expected_transitions(law, c, at, conditioned=False)) for c, at in zip(seen, (40, 60, 62))) > 12


def test_later_strings_follow_the_law_too(drawn):
    law, states, position = drawn
    later = (position == 1)[:, 1:]
    observed = np.bincount(states[:, 1:][later], minlength=law.grammar.num_states)[list(law.grammar.start_states)]
    assert observed.sum() == later.sum() and chi2(observed, law.start_probabilities() * later.sum()) < 5
    assert position.max() <= 64


def test_min_length_is_kept():
    grammar = Grammar.random(letters=4, depth=2, density=0.6, seed=2, min_length=5)
    states = string_law(grammar, 12).sample(2_000, 60, stream("test")).T
    position = split_strings(states)
    ends = position[states == 0]
    assert ends.min() == 5 and ends.max() == 12
    observed = np.bincount(np.argmax(states == 0, 1) + 1, minlength=13)
    assert chi2(observed, string_law(grammar, 12).length_probabilities() * 2_000) < 5


def test_a_law_that_proposals_alone_could_not_serve():
    """`#` with chance 2^-20 from the only state: nearly every step must come from inversion, and lengths are all but uniform."""
    grammar = Grammar(1, [1], [[0, 1]], [1], weights=[[1, (1 << 20) - 1]])
    states = string_law(grammar, 20).sample(5_000, 40, stream("test")).T
    lengths = np.bincount(np.argmax(states == 0, 1) + 1, minlength=21)
    assert lengths[:2].sum() == 0 and chi2(lengths, string_law(grammar, 20).length_probabilities() * 5_000) < 5


@pytest.mark.parametrize("longest, words", [(1, "no string of 1 to 1 items"), (2, "no string of 1 to 2 items")])
def test_no_string_fits(longest, words):
    with pytest.raises(InputError, match=words):
        StringLaw(Grammar(2, [1, 1], [[2], [0]], [1]), longest)
    with pytest.raises(InputError, match="above max_string_length"):
        StringLaw(Grammar(2, [1, 1], [[2], [0]], [1], min_length=9), 4)


def test_fewer_items_are_a_prefix_and_blocks_differ():
    g = Grammar.random(letters=8)
    whole = sample_block(g, 64, 64, 1, "validation", 0)
    assert whole.shape == (64, 1000) and whole.dtype == np.uint16
    assert np.array_equal(sample_block(g, 64, 10, 1, "validation", 0), whole[:10])
    assert np.array_equal(sample_block(g, 64, 64, 1, "test_gap_5", 0), sample_block(g, 64, 64, 1, "test", 0))
    for other in [
        sample_block(g, 64, 64, 1, "test", 0),
        sample_block(g, 64, 64, 1, "validation", 1),
        sample_block(g, 64, 64, 2, "validation", 0),
    ]:
        assert (other == whole).mean() < 0.5


def test_streams_are_told_apart():
    """Seed x index collides (2 x 3 = 3 x 2, anything x 0); keys by name do not."""
    keys = {
        stream_key(purpose, seed, split, block)
        for purpose in ("strings", "gaps")
        for seed in range(4)
        for split in ("train", "test")
        for block in range(4)
    }
    assert len(keys) == 2 * 4 * 2 * 4
    assert GENERATOR_VERSION == "selectivbench-1"
    words = raw32(stream("test"), 5)
    assert words.dtype == np.uint32 and words.tolist() == [801710836, 4275661085, 3704269048, 2344462279, 3363603027]


def test_high_word():
    rng = np.random.default_rng(0)
    a, b = rng.integers(0, 2**64, (2, 1000), dtype=np.uint64)
    assert sampling._high_word(a, b).tolist() == [int(x) * int(y) >> 64 for x, y in zip(a, b)]


def test_large_state_spaces_take_wider_integers():
    g = Grammar(1, [70_000], [[0, s % 70_000 + 1] for s in range(1, 70_001)], [69_999, 70_000])
    states = string_law(g, 5).sample(100, 20, stream("test"))
    assert states.dtype == np.uint32 and states.max() == 70_000 and split_strings(states.T).max() <= 5
