"""Prediction mode: targets, the oracle's KL of 0, known positive KLs, models of all variants, and laws from elsewhere."""

import json

import numpy as np
import pytest
import torch
from transformers import AutoModelForCausalLM, AutoModelForTokenClassification

import selectivbench_hf as sb
from selectivbench_hf import evaluation, oracle, prediction, results
from selectivbench_hf.arguments import TrainingArguments
from selectivbench_hf.errors import InputError
from selectivbench_hf.evaluation import evaluate
from selectivbench_hf.features import make_batch
from selectivbench_hf.layout import load_split
from selectivbench_hf.sampling import StringLaw

SMALL = {"num_train": 24, "num_validation": 5, "num_test": 11, "num_items": 12}
VARIANTS = {
    "lite": {},
    "lite_noisy_gaps": {"test_gaps": [10, 1, 30]},
    "lite_nongrammatical_gaps": {"distractor_rate": 0.5, "distractor_start": 2},
}


@pytest.fixture(autouse=True)
def one_thread():
    torch.set_num_threads(1)


def task_of(name="lite", **more):
    return sb.get_task(name, **{**SMALL, **VARIANTS[name], **more})


# ---------------------------------------------------------------- targets


@pytest.mark.parametrize("name", VARIANTS)
def test_targets_are_the_next_items_symbol_and_inputs_stay(name):
    task = task_of(name)
    plain, batch = (make_batch(task, "train", [3, 0, 9], epoch=0, seed=0, objective=o) for o in prediction.OBJECTIVES)
    for key in ("input_ids", "input_features", "item_ids", "lengths"):
        assert np.array_equal(plain[key], batch[key])
    for ids, items, labels in zip(batch["input_ids"], batch["item_ids"], batch["labels"], strict=True):
        shown = [int(ids[np.flatnonzero(items == i)[0]]) for i in range(task.num_items)]  # the item's own step
        for item, label in zip(items, labels, strict=True):
            assert label == (shown[item + 1] if 0 <= item < task.num_items - 1 else -100)
    (streamed,) = sb.batches(task, "test", 11, objective="prediction")
    assert np.array_equal(streamed["labels"], make_batch(task, "test", range(11), objective="prediction")["labels"])


def test_the_collator_gives_the_same_targets():
    from datasets import load_dataset

    task = task_of("lite_noisy_gaps")
    rows = load_dataset("selectivbench", "lite_noisy_gaps", split="test", **SMALL, **VARIANTS["lite_noisy_gaps"])
    got = sb.Collator(task, "test", objective="prediction")([rows[i] for i in range(3)])
    wanted = make_batch(task, "test", range(3), objective="prediction")
    assert np.array_equal(got["labels"].numpy(), wanted["labels"])
    assert np.array_equal(got["input_features"].numpy(), wanted["input_features"])


# ---------------------------------------------------------------- the law


def exact_laws(task, split="test"):
    return oracle.filter_split(task, split, laws=True).laws[:, :-1]


@pytest.mark.parametrize("name", VARIANTS)
def test_the_oracles_own_kl_is_zero(name):
    task = task_of(name)
    laws = exact_laws(task)
    got = sb.score_laws(task, "test", laws)
    assert abs(got.kl) < 1e-12 and got.kl_interval == pytest.approx([0, 0], abs=1e-12)
    assert got.cross_entropy == pytest.approx(got.law_cross_entropy, abs=1e-12)
    entropies = [-sum(p * np.log(p) for p in law if p > 0) for law in laws.reshape(-1, task.num_symbols)]
    assert got.entropy == pytest.approx(np.mean(entropies), abs=1e-12) and got.entropy > 0.5
    came = load_split(task, "test").items[:, 1:]
    assert got.correct == (laws.argmax(-1) == came).sum() and got.total == 11 * 11
    # a mixture with another law costs what the formula says
    mixed = 0.7 * laws + 0.3 / task.num_symbols
    wanted = [sum(p * np.log(p / q) for p, q in zip(*pair) if p > 0)
              for pair in zip(laws.reshape(-1, task.num_symbols), mixed.reshape(-1, task.num_symbols))]  # fmt: skip
    assert sb.score_laws(task, "test", mixed).kl == pytest.approx(np.mean(wanted), abs=1e-12)
    assert sb.score_laws(task, "test", mixed[:4]).per_sequence == pytest.approx(
        np.reshape(wanted, (11, 11))[:4].mean(1)
    )


@pytest.mark.parametrize("name", VARIANTS)
def test_laws_are_the_same_in_small_pieces(name, monkeypatch):
    task = task_of(name)
    monkeypatch.setattr(prediction, "NUMBERS_AT_ONCE", 3 * 11 * 9)  # three sequences
    prediction._laws.cache_clear()
    assert np.allclose(
        prediction.next_laws(task, "test", [7, 2, 3, 10]), exact_laws(task)[[7, 2, 3, 10]], rtol=0, atol=1e-14
    )
    prediction._laws.cache_clear()


class Replay(torch.nn.Module):
    """Gives the logits of given laws at every step of the sequences in their order, as a model would."""

    def __init__(self, task, split, laws):
        super().__init__()
        self.task, self.split, self.laws, self.seen = task, split, laws, 0
        self.weight = torch.nn.Parameter(torch.zeros(()))

    def forward(self, x):
        ids = range(self.seen, self.seen + len(x))
        self.seen += len(x)
        items = make_batch(self.task, self.split, ids)["item_ids"].clip(0, self.task.num_items - 2)
        laws = np.take_along_axis(self.laws[list(ids)], items[..., None], 1)
        return torch.log(torch.from_numpy(laws).clamp(min=1e-30)).float()


@pytest.mark.parametrize("name", VARIANTS)
def test_a_model_that_gives_the_law_has_no_kl_whatever_the_batches(name):
    task = task_of(name)
    reference = None
    for rows in (1, 4, 64):
        replay = Replay(task, "test", exact_laws(task))
        got = evaluate(replay, task, ["test"], batch_size=rows, objective="prediction")["test"]
        assert abs(got["kl"]) < 1e-6 and got["kl_reason"] is None
        assert got["cross_entropy"] == pytest.approx(got["law_cross_entropy"], abs=1e-6)
        assert got["source_perplexity"] == pytest.approx(np.exp(got["entropy"]))
        counts = [got[k] for k in ("correct", "correct_first", "correct_last", "total", "law_items", "steps")]
        reference = reference or counts
        assert counts == reference and got["total"] == got["law_items"] == 11 * 11
    assert counts[0] == sb.score_laws(task, "test", exact_laws(task)).correct


def known_task(**more):
    """Start states of different letters, so that the state and its place in the string are always known."""
    for seed in range(1, 50):
        task = sb.get_task("lite", grammar_seed=seed, letters=5, depth=3, max_string_length=9, **{**SMALL, **more})
        if len({task.grammar.symbol_of[s] for s in task.grammar.start_states}) == task.num_start_states:
            return task
    raise AssertionError("no such grammar")


def test_uniform_over_successors_has_its_known_kl():
    """log(number of successors) less the entropy of the true law, by the law of strings written out along the true path."""
    task = known_task()
    grammar, strings = task.grammar, StringLaw(task.grammar, task.max_string_length)
    states = load_split(task, "test").states.astype(int)
    uniform, costs = np.zeros((len(states), task.num_items - 1, task.num_symbols)), []
    for n, row in enumerate(states):
        position = 0
        for i, state in enumerate(row[:-1]):
            position = 0 if state == 0 else position + 1
            following = list(grammar.start_states) if state == 0 else list(grammar.successors(state))
            chances = (
                strings.start_probabilities() if state == 0 else strings.transition_probabilities(state, position)
            )
            uniform[n, i, grammar.symbol_of[following]] = 1 / len(following)
            costs.append(np.log(len(following)) + sum(p * np.log(p) for p in chances if p > 0))
    got = sb.score_laws(task, "test", uniform)
    assert got.kl == pytest.approx(np.mean(costs), abs=1e-9) and got.kl > 0.005
    assert got.cross_entropy == pytest.approx(-np.log(np.take_along_axis(
        uniform, task.grammar.symbol_of[states[:, 1:]][..., None].astype(int), -1)).mean())  # fmt: skip


def test_a_symbol_that_can_come_and_was_given_no_chance_is_told():
    task = task_of()
    laws = exact_laws(task).copy()
    n, i = np.argwhere((laws > 0).sum(-1) > 1)[0]
    some = np.flatnonzero(laws[n, i])
    laws[n, i, some[0]] = 0
    laws[n, i] /= laws[n, i].sum()
    got = sb.score_laws(task, "test", laws)
    assert got.kl == np.inf and got.kl_interval is None
    assert json.loads(json.dumps(got.as_dict(), allow_nan=False))["kl"] is None


def test_noise_that_hides_symbols_leaves_cross_entropy_and_says_why():
    task = task_of("lite_noisy_gaps", noise="gaussian", noise_scale=0.5)
    laws = exact_laws(task_of("lite_noisy_gaps"))
    got = sb.score_laws(task, "test", laws)
    assert got.kl is None and "can hide them" in got.reason and got.cross_entropy > 0
    scores = evaluate(Replay(task, "test", laws), task, ["test"], objective="prediction")
    assert scores["test"]["kl"] is scores["test"]["entropy"] is scores["test"]["kl_interval"] is None
    assert scores["test"]["cross_entropy"] == pytest.approx(got.cross_entropy, abs=1e-6)
    assert "no KL on test: the exact filter needs symbols" in results.table(scores)


# ---------------------------------------------------------------- models


def trained(folder, name, mixer, **more):
    keys = {"hidden_size": 16, "num_hidden_layers": 1, "max_steps": 3, "eval_steps": 2, "objective": "prediction"}
    return sb.train(task_of(name), mixer, output_dir=folder, **keys, **more)


@pytest.mark.parametrize("mixer", ["transformer", "gla"])
@pytest.mark.parametrize("name", VARIANTS)
def test_every_variant_trains_is_recorded_and_evaluates_to_the_same(tmp_path, capfd, name, mixer):
    if mixer == "gla":
        pytest.importorskip("fla")
    run = trained(tmp_path / "run", name, mixer)
    results.validate(run.record)
    task = task_of(name)
    assert run.record["arguments"]["objective"] == run.record["evaluation"]["objective"] == "prediction"
    assert run.record["evaluation"]["selection"].startswith("lowest validation KL")
    steps = {e["step"]: e["kl"] for e in run.record["evaluation"]["validation_history"]}
    assert run.record["evaluation"]["step"] == min(steps, key=steps.get) and set(steps) == {2, 3}
    for split, s in run.scores.items():
        assert s["total"] == task.splits[split] * (task.num_items - 1) and s["kl"] > 0
        assert s["kl_interval"][0] < s["kl"] < s["kl_interval"][1]
        assert s["perplexity"] == pytest.approx(np.exp(s["cross_entropy"]))
    if name == "lite_nongrammatical_gaps":
        assert run.scores["test"]["headline"]["kl"] > 0
    assert evaluation.main([str(run.output_dir), "--json", "--objective", "prediction"]) == 0
    out, err = capfd.readouterr()
    rows = json.loads(out, parse_constant=pytest.fail)
    assert all(r["equal_to_record"] for r in rows) and "equal to the record to the last count" in err
    assert {r["name"]: r["kl"] for r in rows} == {s: v["kl"] for s, v in run.scores.items()}


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    torch.set_num_threads(1)
    return trained(tmp_path_factory.mktemp("prediction") / "run", "lite", "transformer", detail=True)


def test_the_table_and_the_finer_scores(run):
    text = results.table(run.scores)
    assert (
        "KL" in text and f"{run.scores['test']['kl']:.4f}" in text and f"{run.scores['test']['entropy']:.4f}" in text
    )
    axis = run.scores["test"]["detail"]["item_index"]
    assert axis["value"] == list(range(11)) and sum(axis["items"]) == 121
    assert np.average(axis["kl"], weights=axis["items"]) == pytest.approx(run.scores["test"]["kl"], abs=1e-5)


def test_the_model_is_a_causal_lm_with_the_same_parts(run):
    folder = run.output_dir / "best"
    assert json.loads((folder / "config.json").read_text())["objective"] == "prediction"
    model, info = AutoModelForCausalLM.from_pretrained(folder, output_loading_info=True)
    assert type(model) is type(run.model) is sb.SelectivBenchForCausalLM
    assert not any(info[k] for k in ("missing_keys", "unexpected_keys", "mismatched_keys"))
    batch = make_batch(task_of(), "test", range(3), objective="prediction")
    x, labels = torch.from_numpy(batch["input_features"]), torch.from_numpy(batch["labels"])
    with torch.no_grad():
        out = model.eval()(x, labels=labels)
        assert torch.equal(out.logits, run.model.eval()(x).logits) and out.logits.shape[-1] == 9
    assert out.loss == pytest.approx(
        torch.nn.functional.cross_entropy(out.logits.flatten(0, 1), labels.flatten()).item()
    )
    with pytest.raises(InputError, match="is a SelectivBenchForCausalLM"):
        AutoModelForTokenClassification.from_pretrained(folder)
    config = sb.SelectivBenchConfig.for_task(task_of(), mixer="transformer", hidden_size=16, num_hidden_layers=1)
    states = sb.SelectivBenchForStateClassification(config)
    assert list(states.state_dict()) == list(model.state_dict())
    with pytest.raises(InputError, match="one class for each of the 9 symbols"):
        sb.SelectivBenchForCausalLM(config)
    with pytest.raises(
        InputError, match="made with objective 'prediction', so it cannot be used with 'classification'"
    ):
        evaluate(run.model, task_of(), objective="classification")


def test_laws_from_another_framework_score_as_the_model_does(run):
    task, laws = task_of(), []
    for batch in sb.batches(task, "test", 4):
        with torch.no_grad():
            logits = run.model.eval()(torch.from_numpy(batch["input_features"])).logits
        laws.append(sb.item_laws(logits.softmax(-1).numpy(), batch["item_ids"]))
    got, wanted = sb.score_laws(task, "test", np.concatenate(laws)), run.scores["test"]
    assert (got.correct, got.total) == (wanted["correct"], wanted["total"])
    for key in ("kl", "cross_entropy", "perplexity", "entropy", "law_cross_entropy"):
        assert getattr(got, key) == pytest.approx(wanted[key], rel=1e-5)
    assert got.kl_interval == pytest.approx(wanted["kl_interval"], rel=1e-5)


def test_a_module_of_the_users_own(tmp_path):
    task = task_of()
    keys = {"max_steps": 30, "eval_steps": 10, "learning_rate": 0.05, "objective": "prediction"}
    run = sb.train(task, torch.nn.Linear(9, 9), output_dir=tmp_path / "run", **keys)
    history = [e["kl"] for e in run.record["evaluation"]["validation_history"]]
    assert history[-1] < history[0] and run.record["model"]["config"] is None
    assert run.record["evaluation"]["objective"] == "prediction"
    with pytest.raises(InputError, match=r"\(batch, steps, symbols\)"):
        sb.train(task, torch.nn.Linear(9, 65), output_dir=tmp_path / "other", **keys)


def test_the_trainer_has_the_targets_of_its_model(tmp_path):
    from datasets import load_dataset
    from transformers import TrainingArguments as Arguments

    ds = load_dataset("selectivbench", "lite", **SMALL)
    config = sb.SelectivBenchConfig.for_task(
        task_of(), mixer="transformer", hidden_size=16, num_hidden_layers=1, objective="prediction"
    )
    args = Arguments(str(tmp_path), max_steps=1, per_device_eval_batch_size=16, report_to="none", use_cpu=True)
    model = sb.SelectivBenchForCausalLM(config)
    trainer = sb.StateTrainer(model=model, task=task_of(), args=args, eval_dataset=ds["test"])
    assert trainer.evaluate()["eval_loss"] == pytest.approx(
        evaluate(model, task_of(), ["test"])["test"]["loss"], abs=1e-5
    )


# ---------------------------------------------------------------- bad input


@pytest.mark.parametrize(
    ("call", "words"),
    [
        (lambda: TrainingArguments(objective="predict"), "did you mean 'prediction'"),
        (lambda: sb.batches("lite", "test", 2, objective="classify"), "did you mean 'classification'"),
        (lambda: sb.train("mqar_lite", objective="prediction"), "'prediction' is for grammar tasks"),
        (lambda: sb.train(task_of(num_items=1, num_train=1, num_test=1, num_validation=1), objective="prediction"), "at least 2 items"),
        (lambda: sb.SelectivBenchConfig(objective="states"), "unknown objective 'states'"),
        (lambda: sb.score_laws(task_of(), "test", np.zeros((3, 12, 9))), r"must have the shape \(N, 11, 9\)"),
        (lambda: sb.score_laws(task_of(), "test", np.zeros((3, 11, 9))), "sequence 0 after item 0 has the sum 0"),
        (lambda: sb.score_laws(task_of(), "test", np.full((3, 11, 9), np.nan)), "probabilities that sum to 1"),
        (lambda: sb.score_laws(task_of(), "test", [[1, 2], [3]]), "one array of numbers"),
        (lambda: sb.score_laws("copy_lite", "test", np.zeros((1, 1, 1))), "'prediction' is for grammar tasks"),
        (lambda: sb.item_laws(np.zeros((2, 3, 4)), np.zeros((2, 4), int)), "do not fit"),
    ],
)  # fmt: skip
def test_bad_input_gets_a_sentence(call, words):
    with pytest.raises(InputError, match=words):
        call()


# ---------------------------------------------------------------- docs/scores.md


def test_the_documents_numbers_are_those_of_its_files(capfd):
    import re
    from pathlib import Path

    docs = Path(__file__).parent.parent / "docs"
    text = (docs / "scores.md").read_text(encoding="utf-8")
    for name in ("distractors", "prediction"):
        scores = json.loads((docs / "scores" / f"{name}.json").read_text(encoding="utf-8"))["splits"]
        lines = results.table({"test": scores["test"]}).splitlines()
        assert "\n".join(lines) in text
    block = re.findall(r"```python\n(.*?)```", text, re.S)
    assert len(block) == 1
    exec(block[0], {})
    assert "LawScore(split='test', kl=" in capfd.readouterr().out
