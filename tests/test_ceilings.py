"""`selectivbench ceiling`, the cache behind it, and the learned baselines."""

import json
from collections import Counter, defaultdict
from pathlib import Path

import numpy as np
import pytest

import selectivbench_hf as sb
from selectivbench_hf import baselines, ceilings, ladder, oracle
from selectivbench_hf.errors import InputError
from selectivbench_hf.layout import load_split
from selectivbench_hf.tasks import LEVELS

SMALL = {"letters": 4, "num_items": 12, "num_train": 400, "num_validation": 5, "num_test": 60, "max_string_length": 12}
SHARED = sb.Grammar(2, [2, 2], [[0, 1, 3], [2, 4], [0, 2, 4], [1, 3]], [1, 2])


@pytest.fixture
def cache(tmp_path, monkeypatch):
    """A cache of its own, and its folder."""
    monkeypatch.setattr(ceilings, "cache_folder", lambda: tmp_path / "cache")
    ceilings._say.cache_clear()
    return tmp_path / "cache"


def test_everything_of_a_task(cache):
    task = sb.get_task("lite_noisy_gaps", **SMALL)
    found = sb.ceiling(task)
    assert found.ceiling == pytest.approx(oracle.ceiling(task).as_dict())
    assert found.ladder == ladder.context_ladder(task)
    assert found.baselines == baselines.k_grams(task)
    assert found.baseline_sequences == 400
    assert (found.accuracy, found.k95) == (found.ceiling["accuracy"], found.ladder.k95)
    many = np.array([1, *task.grammar.depths])[load_split(task, "test").items]
    assert found.chance == {"guess": 1 / 17, "guess_of_symbol": pytest.approx((1 / many).mean())}
    assert sb.ceiling("mqar_64_4").as_dict()["ceiling"] == {"accuracy": 1.0}


def test_what_is_kept_is_not_computed_again(cache, monkeypatch):
    """Variants and gap splits of a level share ladder and baselines; another grammar and other code do not."""
    task = sb.get_task("lite_noisy_gaps", **SMALL)
    first = sb.ceiling(task)
    assert sorted(f.name.split("-")[0] for f in cache.iterdir()) == ["baselines", "filter", "ladder"]

    def again(*arguments):
        raise AssertionError("computed again")

    monkeypatch.setattr(baselines, "k_grams", again)
    monkeypatch.setattr(ceilings, "context_ladder", again)
    assert sb.ceiling(sb.get_task("lite_nongrammatical_gaps", **SMALL)).ladder == first.ladder
    assert sb.ceiling(task, "test_gap_50").baselines == first.baselines
    monkeypatch.setattr(oracle, "ceiling", again)
    assert sb.ceiling(task) == first
    for other in (sb.get_task(task, grammar_seed=2), sb.get_task(task, num_test=61)):
        with pytest.raises(AssertionError, match="computed again"):
            ceilings.ladder_of(other)
    monkeypatch.setattr(ceilings, "_code", lambda: "other")
    with pytest.raises(AssertionError, match="computed again"):
        sb.ceiling(task)


@pytest.mark.parametrize("damage", ["", "{", "[]", "null", "9" * 5000, "\udcff", "digit"])
def test_a_damaged_file_is_computed_again_and_told(cache, capsys, damage):
    task = sb.get_task("lite", **SMALL)
    first = ceilings.ladder_of(task)
    (file,) = cache.iterdir()
    whole = file.read_text()
    text = whole.replace('"limit": ', '"limit": 1', 1) if damage == "digit" else damage
    assert text != whole
    file.write_bytes(text.encode("utf-8", "surrogateescape"))
    assert ceilings.ladder_of(task) == first
    assert capsys.readouterr().err == f"{file} is damaged: computed again\n"
    assert file.read_text() == whole
    assert list(cache.iterdir()) == [file]
    assert ceilings.ladder_of(task) == first
    assert capsys.readouterr().err == ""


def test_a_cache_that_cannot_be_written_is_told_once(tmp_path, monkeypatch, capsys):
    (tmp_path / "file").write_text("")
    monkeypatch.setattr(ceilings, "cache_folder", lambda: tmp_path / "file" / "cache")
    ceilings._say.cache_clear()
    task = sb.get_task("lite", **SMALL)
    assert sb.ceiling(task) == sb.ceiling(task)
    assert capsys.readouterr().err.count("ceilings are not kept for the next time") == 1


def test_a_grammar_too_large_for_a_ladder_still_has_its_filter(cache, monkeypatch):
    monkeypatch.setattr(ladder, "MAX_STATES", 4)
    found = sb.ceiling(sb.get_task("lite", **SMALL))
    assert (found.ladder, found.k95, found.as_dict()["ladder"]) == (None, None, [])
    assert "17 states; the context ladder" in found.notes[0]
    assert found.accuracy > 0.5


# -- baselines -----------------------------------------------------------------------------------------------------------


def counted_by_hand(task, sequences):
    """k-grams with back-off from dictionaries."""
    train, test = load_split(task, "train"), load_split(task, "test")
    tables = defaultdict(Counter)
    for symbols, states in zip(train.items[:sequences].tolist(), train.states[:sequences].tolist()):
        for i, state in enumerate(states):
            for k in range(min(i + 1, 4) + 1):
                tables[tuple(symbols[i - k + 1 : i + 1])][state] += 1
    best = {context: min(c, key=lambda s: (-c[s], s)) for context, c in tables.items()}
    out = {}
    for longest, name in enumerate(("majority", "1-gram", "2-gram", "3-gram", "4-gram")):
        right = 0
        for symbols, states in zip(test.items.tolist(), test.states.tolist()):
            for i, state in enumerate(states):
                known = [tuple(symbols[i - k + 1 : i + 1]) for k in range(min(i + 1, longest) + 1)]
                right += best[max((c for c in known if c in best), key=len)] == state
        out[name] = right / test.states.size
    return out


@pytest.mark.parametrize("fields", [{}, {"num_train": 3}, {"num_items": 2}, {"grammar": SHARED, "letters": None}])
def test_k_grams_are_counts(fields):
    task = sb.get_task("lite_nongrammatical_gaps", **{**SMALL, **fields})
    wanted = counted_by_hand(task, 200)
    got = baselines.k_grams(task, sequences=200)
    assert got == pytest.approx({name: wanted[name] for name in got})
    assert len(got) == 1 + min(4, task.num_items)


def test_contexts_that_would_not_fit_63_bits_are_numbered_anew(monkeypatch):
    """The same counts where every context is renumbered."""
    task = sb.get_task("lite", **SMALL)
    usual, renumber, times = baselines.k_grams(task), baselines._renumbered, []
    monkeypatch.setattr(baselines, "LARGEST_KEY", 0)
    monkeypatch.setattr(baselines, "_renumbered", lambda *contexts: times.append(1) or renumber(*contexts))
    assert baselines.k_grams(task) == usual
    assert len(times) == 4


# -- the command ---------------------------------------------------------------------------------------------------------


def flags(**more):
    return [text for name, value in {**SMALL, **more}.items() for text in (f"--{name}", value)]


def test_json_and_figure(selectivbench, tmp_path, strict_json):
    done = selectivbench("ceiling", "lite_noisy_gaps", "lite", *flags(), "--json", "--plot", "ladder.png")
    noisy, plain = strict_json(done.stdout)
    task = sb.get_task("lite_noisy_gaps", **SMALL)
    best, rungs = oracle.ceiling(task), ladder.context_ladder(task)
    assert (noisy["name"], noisy["task"], noisy["split"], plain["name"]) == ("lite_noisy_gaps", "lite_noisy_gaps", "test", "lite")  # fmt: skip
    for key in ("accuracy", "cross_entropy", "expected_accuracy"):
        assert noisy["ceiling"][key] == pytest.approx(best.as_dict()[key])
    assert [rung["k"] for rung in noisy["ladder"]] == list(range(1, len(rungs.accuracy) + 1))
    assert [rung["accuracy"] for rung in noisy["ladder"]] == pytest.approx(rungs.accuracy)
    assert noisy["k95"] == rungs.k95
    assert list(noisy["baselines"]) == ["majority", "1-gram", "2-gram", "3-gram", "4-gram"]
    assert plain["ladder"] == noisy["ladder"]
    assert (tmp_path / "ladder.png").read_bytes()[:4] == b"\x89PNG"
    assert done.stderr == "ladder.png: the ladder of lite_noisy_gaps, lite\n"


def test_table(selectivbench):
    out = selectivbench("ceiling", "lite", *flags(), "--split", "validation").stdout
    rungs = ladder.context_ladder(sb.get_task("lite", **SMALL), "validation")
    assert "split validation: 5 sequences, 60 items" in out
    share = {line.rsplit(None, 1)[0]: line.split()[-1] for line in out.splitlines() if line.endswith("%")}
    for k, name in ((1, "the last 1 item"), (2, "the last 2 items")):
        assert share[name] == f"{rungs.accuracy[k - 1]:.2%}"
    assert f"k95 = {rungs.k95}:" in out
    out = selectivbench("ceiling", "mqar_lite").stdout
    assert "any value of the sequence    25.00%" in out


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (["lite_noisy_gap"], "did you mean 'lite_noisy_gaps'"),
        (["lite", "--split", "test_gap_5"], "unknown split 'test_gap_5' in lite"),
        (["lite_noisy_gaps", "--noise", "gaussian"], "the exact filter needs symbols that a threshold can tell"),
        (["lite", "--plot", "ladder.txt"], "a picture's name must end in"),
        (["copy_lite", "--plot", "ladder.png"], "copy_lite is a recall task, which has none"),
        (["lite", "--splitt", "test"], "did you mean '--split'"),
    ],
)
def test_bad_input_is_one_sentence(selectivbench, tmp_path, arguments, says):
    done = selectivbench("ceiling", *arguments, ok=False)
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr.startswith("error: ") and done.stderr.count("\n") == 1 and says in done.stderr
    assert not list(tmp_path.iterdir())


@pytest.mark.slow
def test_te7_takes_less_than_a_minute(selectivbench, tmp_path):
    done = selectivbench("ceiling", "te7_noisy_gaps", "--json", env={"HF_HOME": str(tmp_path)}, timeout=60)
    (row,) = json.loads(done.stdout)
    assert row["ceiling"]["total"] == 200_000
    assert row["k95"] == 7


def test_a_task_of_no_such_split_is_told():
    with pytest.raises(InputError, match="unknown split 'tset' in lite"):
        sb.ceiling("lite", "tset")


# -- where else it appears -----------------------------------------------------------------------------------------------


def test_tasks_verbose(capsys, monkeypatch):
    from selectivbench_hf import cli, tasks

    monkeypatch.setattr(tasks, "task_names", lambda: ["lite", "copy_lite"])
    assert cli.main(["tasks", "--verbose"]) == 0
    out = capsys.readouterr().out
    assert "exact filter 100.00%; k95 4; the last item alone 34.88%" in out
    assert "guessing one of the possible answers is worth 3.85%" in out
    assert cli.main(["tasks", "--verbose", "--json"]) == 0
    lite, copying = json.loads(capsys.readouterr().out)
    assert (lite["ceiling"]["accuracy"], lite["ceiling"]["k95"], lite["ceiling"]["why"]) == (1.0, 4, None)
    assert "ceiling" not in copying
    assert cli.main(["tasks", "--json"]) == 0
    assert "ceiling" not in json.loads(capsys.readouterr().out)[0]


def test_data_card(cache):
    """The card has the numbers of its configs; where there is no exact filter it says why; older manifests have dashes."""
    from selectivbench_hf import datacard, datacard_tables

    task = sb.get_task("lite_noisy_gaps", **SMALL)
    hidden = sb.get_task(task, noise="gaussian", noise_scale=0.5)
    cards = {"a": datacard.facts(task), "b": datacard.facts(hidden), "c": datacard.facts(task)}
    del cards["c"]["ceiling"]
    best, rungs = oracle.ceiling(task), ladder.context_ladder(task).accuracy
    assert cards["a"]["ceiling"]["ladder"] == [round(a, 6) for a in rungs]
    told = datacard_tables.ceilings_table({name: {"card": card} for name, card in cards.items()}).splitlines()
    assert told[2].startswith(
        f"| `a` | {best.accuracy:.2%} | {ladder.context_ladder(task).k95 or 'none'} | {rungs[0]:.2%} | "
    )
    assert told[3].replace(" ", "") == "|`b`|" + "-|" * 8
    assert told[4].replace(" ", "") == "|`c`|" + "-|" * 8
    assert told[6].startswith("- `b`: the exact filter needs symbols")


# -- docs/ceilings.md ----------------------------------------------------------------------------------------------------

DOCS = Path(__file__).parent.parent / "docs"


def test_the_levels_table_is_what_the_command_wrote():
    text = (DOCS / "ceilings.md").read_text()
    rows = json.loads((DOCS / "ceilings/ladder.json").read_text())
    assert [row["name"] for row in rows] == list(LEVELS)
    for row in rows:
        rungs = " | ".join(f"{100 * rung['accuracy']:.1f}" for rung in row["ladder"][:8])
        best, grams = row["ceiling"]["accuracy"], 100 * row["baselines"]["4-gram"]
        assert f"\n| `{row['name']}` | {best:.2%} | {row['k95']} | {rungs} | {grams:.1f} |\n" in text
    lite = sb.ceiling("lite").as_dict()
    assert lite["ladder"] == [pytest.approx(rung) for rung in rows[0]["ladder"]]
    assert lite["ceiling"] == pytest.approx(rows[0]["ceiling"])
    assert lite["baselines"] == pytest.approx(rows[0]["baselines"])


@pytest.mark.slow
@pytest.mark.parametrize("name", ["te7_noisy_gaps", "te7_nongrammatical_gaps"])
def test_the_outputs_in_the_docs_are_the_commands(selectivbench, name):
    out = selectivbench("ceiling", name, timeout=120).stdout
    assert f"```\n$ selectivbench ceiling {name}\n{out}```" in (DOCS / "ceilings.md").read_text()


def test_a_task_without_k95_says_so(cache, capsys):
    from selectivbench_hf import cli

    assert cli.main(["ceiling", "lite", *map(str, flags(letters=3, density=1.0))]) == 0
    rungs = ladder.context_ladder(sb.get_task("lite", **{**SMALL, "letters": 3, "density": 1.0}))
    assert rungs.k95 is None
    said = f"no k95: of the last {len(rungs.accuracy)} items {rungs.accuracy[-1]:.2%} is the best, of all items {rungs.limit:.2%}"
    assert said in capsys.readouterr().out
