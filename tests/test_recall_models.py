"""Models on recall tasks: embedding and tied head, the collators, modules of one's own, and scores by counting questions."""

import copy
import json
import pickle

import numpy as np
import pytest
import torch
from torch import nn

import selectivbench_hf as sb
from selectivbench_hf import InputError, get_task
from selectivbench_hf.evaluation import evaluate
from selectivbench_hf.features import IGNORED, epoch_order, make_batch
from selectivbench_hf.layout import load_split
from selectivbench_hf.models import parameter_counts, parameter_groups, wrap_module
from selectivbench_hf.optimization import training_batch

SIZES = {"num_train": 48, "num_validation": 9, "num_test": 11}
TINY = {"hidden_size": 16, "num_hidden_layers": 1, "dropout": 0.0}


def model(task, **fields):
    torch.manual_seed(0)
    config = sb.SelectivBenchConfig.for_task(task, mixer="transformer", **TINY, **fields)
    return sb.SelectivBenchForStateClassification(config).eval()


def test_the_embedding_and_a_tied_head():
    task = get_task("mqar_64_4")
    tied, untied = model(task, tie_word_embeddings=True), model(task)
    assert tied.encoder.weight.std().item() == pytest.approx(8192**-0.5, rel=0.02)
    assert not tied.classifier.bias.any() and tied.classifier.bias.shape == (8192,)
    difference = parameter_counts(untied)["total"] - parameter_counts(tied)["total"]
    assert difference == 8192 * 16 == untied.classifier.weight.numel()
    names = {g["name"]: g["names"] for g in parameter_groups(tied, 0.1)}
    assert "encoder.weight" in names["no_decay"] and sum(map(len, names.values())) == len(list(tied.parameters()))
    ids = torch.randint(0, 8192, (2, 5))
    x = tied.hidden(input_ids=ids)
    assert torch.allclose(tied.classifier(x), x @ tied.encoder.weight + tied.classifier.bias, atol=1e-6)
    tied(input_ids=ids, labels=ids).loss.backward()
    unseen = torch.ones(8192, dtype=torch.bool)
    unseen[ids.flatten()] = False
    assert tied.encoder.weight.grad[:, unseen].abs().sum() > 0  # through the head: no input has shown these
    grammar = model(get_task("lite"))
    assert isinstance(grammar.classifier, nn.Linear) and grammar.encoder.weight.std().item() == pytest.approx(
        1 / 3, rel=0.3
    )
    with pytest.raises(InputError, match="as many classes as symbols.* 65 classes and 9 symbols"):
        model(get_task("lite"), tie_word_embeddings=True)
    with pytest.raises(InputError, match="tie_word_embeddings is 1; it must be true or false"):
        model(task, tie_word_embeddings=1)


@pytest.mark.parametrize("tied", [True, False])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_heads_are_saved_and_loaded_to_the_bit(tied, dtype, tmp_path):
    from safetensors.torch import load_file
    from transformers import AutoModelForTokenClassification

    net = model(get_task("copy_lite"), tie_word_embeddings=tied).to(dtype)
    with torch.no_grad():
        for parameter in net.parameters():
            parameter.add_(torch.randn_like(parameter) * 0.1)
    net.save_pretrained(tmp_path)
    assert ("classifier.weight" in load_file(tmp_path / "model.safetensors")) != tied
    ids = torch.randint(0, 29, (2, 33))
    for cls in (sb.SelectivBenchForStateClassification, AutoModelForTokenClassification):
        for more in ({}, {"low_cpu_mem_usage": True, "device_map": None}):
            loaded, info = cls.from_pretrained(tmp_path, dtype=dtype, output_loading_info=True, **more)
            assert not any(info.values()) and loaded.config.tie_word_embeddings is tied
            assert {n: p.shape for n, p in loaded.named_parameters()} == {
                n: p.shape for n, p in net.named_parameters()
            }
            assert all(torch.equal(a, b) for a, b in zip(loaded.parameters(), net.parameters(), strict=True))
            assert torch.equal(loaded.eval()(input_ids=ids).logits, net(input_ids=ids).logits)
    for other in (copy.deepcopy(net), pickle.loads(pickle.dumps(net)), loaded):
        x = torch.randn(3, 16, dtype=dtype)
        with torch.no_grad():
            other.encoder.weight.zero_()
            zero = other.classifier(x) == other.classifier.bias
        assert zero.all() if tied else not zero.all()  # the copy's head is tied to the copy's encoder


class Reader(nn.Module):
    """Answers each question by looking its key up in the sequence; no parameter but a bias, so that training can run."""

    def __init__(self, task, wrong_every=0):
        super().__init__()
        self.task, self.wrong_every, self.bias = task, wrong_every, nn.Parameter(torch.zeros(task.num_states))

    def forward(self, ids):
        assert ids.dtype == torch.int64 and ids.dim() == 2
        answers = torch.zeros_like(ids)
        if self.task.kind == "mqar":
            for row in range(len(ids)):
                after = 2 * self.task.num_pairs
                value = dict(zip(ids[row, 0:after:2].tolist(), ids[row, 1:after:2].tolist(), strict=True))
                answers[row] = torch.tensor([value.get(i, 0) for i in ids[row].tolist()])
        else:
            for row in range(len(ids)):
                length = ids[row].tolist().index(27)
                answers[row, length + 1 : 2 * length + 1] = ids[row, :length]
        if self.wrong_every:
            answers[:: self.wrong_every] = 0
        return nn.functional.one_hot(answers, self.task.num_states) * 30.0 + self.bias


@pytest.mark.parametrize("name", ["mqar_lite", "copy_lite"])
def test_a_module_that_knows_the_answers_has_all_right(name):
    task = get_task(name, **SIZES)
    questions = (make_batch(task, "test", np.arange(11))["labels"] >= 0).sum(1)
    scores = evaluate(Reader(task), task, batch_size=4)["test"]
    assert scores["correct"] == scores["correct_first"] == scores["correct_last"] == scores["total"] == questions.sum()
    assert scores["sequences_right"] == scores["sequences"] == 11 and scores["loss"] < 1e-9
    half = evaluate(Reader(task, wrong_every=2), task, batch_size=11)["test"]
    assert half["correct"] == questions[1::2].sum() and half["sequences_right"] == 5
    with pytest.raises(InputError, match=r"returned shape \(4, \d+, 3\)"):
        evaluate(wrap_module(nn.Embedding(task.num_symbols + 1, 3), task), task, batch_size=4)


@pytest.mark.parametrize("name", ["mqar_lite", "copy_lite"])
def test_scores_do_not_depend_on_batches_and_are_those_of_whole_logits(name):
    """The head is applied where something is asked; the counts and the loss are those of logits at every step."""
    task = get_task(name, **SIZES)
    net = model(task)
    with torch.no_grad():
        net.encoder.weight.mul_(10)  # answers that differ
    want = evaluate(net, task, batch_size=3)["test"]
    again = evaluate(net, task, batch_size=11)["test"]
    batch = make_batch(task, "test", np.arange(11))
    with torch.no_grad():
        logits = net(input_ids=torch.from_numpy(batch["input_ids"])).logits
    labels = torch.from_numpy(batch["labels"])
    right = (logits.argmax(-1) == labels).sum().item()
    loss = nn.functional.cross_entropy(logits.flatten(0, 1), labels.flatten(), ignore_index=IGNORED).item()
    for scores in (want, again):
        assert (scores["correct"], scores["total"]) == (right, int((labels >= 0).sum()))
        assert scores["loss"] == pytest.approx(loss, rel=1e-5)


@pytest.mark.parametrize("name", ["mqar_lite", "copy_lite"])
def test_training_is_that_of_whole_logits_and_writes_a_record(name, tmp_path):
    task = get_task(name, **SIZES)
    fields = {
        **TINY,
        "max_steps": 2,
        "per_device_train_batch_size": 8,
        "learning_rate": 1e-2,
        "warmup_steps": 0,
        "max_grad_norm": 0.0,
    }
    result = sb.train(task, "transformer", lr_scheduler_type="constant", output_dir=str(tmp_path / "run"), **fields)
    net = model(task)
    optimizer = torch.optim.AdamW(net.parameters(), lr=1e-2, weight_decay=0.0)
    order = epoch_order(48, 0, 0)
    for step in range(2):
        batch = training_batch(task, order[8 * step : 8 * step + 8], 0, 0)
        loss = net.train()(**batch).loss
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    assert result.record["training"]["loss"] == pytest.approx(loss.item(), rel=1e-4)
    assert result.record["model"]["config"]["tie_word_embeddings"] is False
    assert result.record["task"]["chance"] == task.chance
    tied = sb.train(task, "transformer", tie_word_embeddings="true", output_dir=str(tmp_path / "tied"), **fields)
    assert result.record["model"]["parameters"] - tied.record["model"]["parameters"] == task.num_symbols * 16
    mine = sb.train(task, Reader(task), max_steps=1, output_dir=str(tmp_path / "mine"))
    assert mine.accuracy("test") == 1
    with pytest.raises(InputError, match="tie_word_embeddings is a choice of a mixer's model"):
        sb.train(task, Reader(task), tie_word_embeddings=True, max_steps=1, output_dir=str(tmp_path / "no"))


@pytest.mark.parametrize("name", ["mqar_lite", "copy_lite"])
def test_the_collator_gives_the_batches_of_training(name, tmp_path):
    from datasets import load_dataset
    from transformers import Trainer, TrainingArguments

    task = get_task(name, **SIZES)
    data = load_dataset("selectivbench", name, cache_dir=str(tmp_path / "cache"), **SIZES)
    want = make_batch(task, "validation", np.arange(9))
    for rows in (
        list(data["validation"]),
        list(data["validation"].with_format("numpy")),
        list(data["validation"].with_format("torch")),
    ):
        got = sb.Collator(task, "validation", with_item_ids=True)(rows)
        assert got.keys() == {"input_ids", "labels", "item_ids", "lengths"}
        for column, values in got.items():
            assert values.dtype == torch.int64 and np.array_equal(values.numpy(), want[column])
    with pytest.raises(InputError, match="lack the columns"):
        sb.Collator(task, "validation")([{"example_id": 0, "input_ids": [1, 2]}])
    net = model(task)
    loss = evaluate(net, task, ["validation"])["validation"]["loss"]
    args = TrainingArguments(
        str(tmp_path / "run"), max_steps=2, per_device_train_batch_size=4, per_device_eval_batch_size=9, report_to="none",
        use_cpu=True, save_strategy="no", disable_tqdm=True, learning_rate=0.0,
    )  # fmt: skip
    parts = {"model": net, "args": args, "train_dataset": data["train"], "eval_dataset": data["validation"]}
    for trainer in (sb.StateTrainer(task=task, **parts), Trainer(data_collator=sb.Collator(task), **parts)):
        trainer.train()
        assert trainer.evaluate()["eval_loss"] == pytest.approx(loss, rel=1e-5)


@pytest.mark.parametrize("name", ["mqar_lite", "copy_lite"])
def test_predictions_from_any_framework_are_scored(name):
    task = get_task(name, **SIZES)
    data = load_split(task, "test")
    right = np.full((11, task.num_items), -1)
    for at, batch in enumerate(sb.batches(task, "test", batch_size=4)):
        answers = sb.predict_answers(batch["labels"], batch["item_ids"], task)  # a model that is always right
        assert answers.shape == (len(batch["labels"]), task.num_items)
        right[4 * at : 4 * at + 4] = answers
    score = sb.score(task, "test", right)
    asked = (data.labels >= 0).sum()
    assert (score.correct, score.total, score.accuracy) == (asked, asked, 1.0) and score.interval == (1.0, 1.0)
    assert score.sequences_right == 11 and (score.per_sequence == (data.labels >= 0).sum(1)).all()
    wrong = right.copy()
    wrong[3, 0] = 0
    one = sb.score(task, "test", wrong)
    assert one.correct == asked - 1 and one.sequences_right == 10 and one.interval[0] < one.accuracy < 1
    assert json.dumps(one.as_dict())
    probabilities = np.random.default_rng(0).random((4, 7, task.num_symbols))
    items = np.full((4, 7), -1)
    items[:, 2], items[:2, 5] = 0, 1
    answers = sb.predict_answers(probabilities, items, task)
    assert (answers[:, 0] == probabilities[:, 2].argmax(-1)).all() and (answers[2:, 1] == -1).all()
    for bad, sentence in (
        (right[:, :-1], "must have the shape"),
        (np.where(right < 0, right, task.num_symbols), "must be symbols from 0 to"),
        (np.where(np.arange(right.shape[1]) == 0, -1, right), "every question needs an answer"),
        (right + 0.5, "whole numbers"),
    ):
        with pytest.raises(InputError, match=sentence):
            sb.score(task, "test", bad)
    if name == "copy_lite":
        with pytest.raises(InputError, match="asks fewer questions than it has answers for; fill up with -1"):
            sb.score(task, "test", np.where(right < 0, 1, right))


def test_commands_take_the_keywords_of_recall_tasks(tmp_path, capsys):
    from selectivbench_hf.arguments import from_argv
    from selectivbench_hf.evaluation import main as evaluate_main
    from selectivbench_hf.training import run

    small = [f"--{k}={v}" for k, v in SIZES.items()]
    shape = ["--mixer", "transformer", "--hidden_size", "16", "--num_hidden_layers", "1", "--max_steps", "2"]
    words = ["--num_pairs", "2", "--filler", "zero", "--alpha", "0.5", "--length", "20", "--vocab_size", "50"]
    args = from_argv(["--task", "mqar_lite", *words, *small, *shape, "--output_dir", str(tmp_path / "run")])
    assert args.task_kwargs == {
        "num_pairs": 2,
        "filler": "zero",
        "alpha": 0.5,
        "length": 20,
        "vocab_size": 50,
        **SIZES,
    }
    record = run(args).record
    keywords = {"num_pairs": 2, "filler": "zero", "alpha": 0.5, "length": 20, "vocab_size": 50}
    assert record["task"]["fingerprint"] == get_task("mqar_lite", **SIZES, **keywords).fingerprint
    assert (record["scores"]["test"]["total"], record["task"]["chance"]["any_value"]) == (22, 0.5)
    assert "naming any value of the sequence is worth 50.00%" in capsys.readouterr().err
    assert evaluate_main([str(tmp_path / "run")]) == 0
    out = capsys.readouterr().out
    assert "equal to the record to the last count" in out and "counts as solved from 95% on" in out
    assert evaluate_main([str(tmp_path / "run"), "--num_pairs", "3", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)[0]["total"] == 33
    assert evaluate_main([str(tmp_path / "run"), "--letters", "3"]) == 2
    assert "unknown task keyword 'letters' in mqar_lite" in capsys.readouterr().err
    with pytest.raises(InputError, match="unknown task keyword 'letters' in mqar_lite"):
        run(from_argv(["--task", "mqar_lite", "--letters", "3", *shape]))
    with pytest.raises(InputError, match="as many classes as symbols"):
        run(
            from_argv(
                ["--task", "lite", "--tie_word_embeddings", "true", *shape, "--output_dir", str(tmp_path / "no")]
            )
        )
    assert not (tmp_path / "no").exists()
