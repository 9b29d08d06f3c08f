"""The card of a submitted model: what it says of every kind of run, that hostile names stay text, and that the Hub's own classes take it."""

import pytest

import selectivbench_hf as sb
from selectivbench_hf.hub import model_card, rows

DATASET = {"id": "selectivbench/selectivbench", "revision": "a" * 40, "tag": "v1.0.0"}


def score(accuracy, total=2000) -> dict:
    right = round(accuracy * total)
    return {
        "correct": right,
        "total": total,
        "sequences": 20,
        "accuracy": right / total,
        "low": right / total - 0.02,
        "high": right / total + 0.02,
    }


def row(number=0, task="lite_noisy_gaps", published=0.6, sealed=0.6, **known):
    """A checked row; `number` makes it another run."""
    task = sb.get_task(task)
    splits = ["test", *(["test_gap_1"] if "test_gap_1" in task.splits else [])]
    fields = {
        "run_id": f"run{number:029d}",
        "name": "tiny",
        "repo": "alice/tiny",
        "submitter": "alice",
        "trust": "weights",
        "mixer": "gla",
        "model_seed": number,
        "hidden_size": 16,
        "num_hidden_layers": 1,
        "parameters": 4649,
        "state_size": 64,
        "weights_sha256": f"{number:064x}",
        "sealed_seed": f"{number:064x}",
        "ceiling": 1.0,
        "validation_accuracy": 0.61,
        "command": f"accelerate launch -m selectivbench_hf.training --task {task.name} --model_seed {number}",
        "kernel_backend": "cpu",
        "device": "cpu: x86_64, 2 threads",
        "precision": "fp32",
        "versions": {"python": "3.11.7", "torch": "2.13.0", "numba": None},
        "date": "2026-11-30",
    }
    scores = lambda accuracy: {split: score(accuracy) for split in splits}
    return rows.make_row(task, scores=scores(published), sealed_scores=scores(sealed), **fields | known)


def parsed(card):
    from huggingface_hub import ModelCard

    return ModelCard(card)


def test_what_it_says():
    given = [row(0, published=0.7, sealed=0.4), row(1, sealed=0.5), row(2, "lite", sealed=0.9)]
    text = model_card.render(given, DATASET, "alice/tiny")
    card = parsed(text)
    assert str(card) == text == model_card.render(given, DATASET, "alice/tiny")  # the same rows make the same card
    data = card.data
    assert (data.library_name, data.datasets, data.model_name) == ("selectivbench-hf", [DATASET["id"]], "tiny")
    assert {"selectivbench", "gla"} <= set(data.tags)
    told = [(r.dataset_config, r.dataset_revision, r.metric_value) for r in data.eval_results]
    assert told == [("lite_noisy_gaps", "a" * 40, 45.0), ("lite", "a" * 40, 90.0)]
    for part in (
        model_card.MARKER,
        "1 layer, width 16, 4,649 parameters, a recurrent state of 64 numbers. 3 runs",
        "| lite_noisy_gaps | 1 | 0 | 70.00 [68.00, 72.00] | **40.00 [38.00, 42.00]** | +",
        "**lite_noisy_gaps, mean** | 1 | 0, 1 | | **45.00",
        "| lite_noisy_gaps `run000000000` | 40.00 (70.00) |",  # test_gap_1
        "What is doubtful",
        "standard errors",
        'from_pretrained("alice/tiny")',
        "selectivbench evaluate runs/run00000000000000000000000000001",
        "selectivbench sealed runs/run00000000000000000000000000000/model.safetensors --task",
        "--task lite_noisy_gaps --model_seed 1\n",
        "python 3.11.7, torch 2.13.0\n",
        "kernels of the training: cpu",
        "at v1.0.0 (commit `" + "a" * 40,
    ):
        assert part in text, part
    assert "{{" not in text and "numba" not in text
    compile(text.split("```python\n")[1].split("```")[0], "card", "exec")


@pytest.mark.parametrize("name", ["| a | b |", "# head", "[x](https://evil.example)", "`code`", "*bold* _it_"])
def test_a_name_stays_text(name):
    text = model_card.render([row(name=name)], DATASET, "alice/tiny")
    assert parsed(text).data.model_name == name
    title = text.split(model_card.MARKER)[1].strip().splitlines()[0]
    assert title == "# " + "".join("\\" + c if c in "\\|`[]*_#" else c for c in name)


def test_kinds_of_runs():
    recall = model_card.render([row(task="mqar_lite")], DATASET, "alice/tiny")
    assert (
        "input_ids=" in recall
        and "questions about what a sequence has shown" in recall
        and "grammar" not in recall.split("## Results")[0]
    )
    assert "(sequences, steps, symbols)" in recall and "| mqar_lite | - |" in recall
    own = model_card.render(
        [row(mixer="MyModel", hidden_size=None, num_hidden_layers=None, command=None)], DATASET, "alice/tiny"
    )
    assert (
        "What is missing is the module, `MyModel`" in own
        and "from_pretrained" not in own
        and "No command was recorded" in own
    )
    numbers = model_card.render(
        [row(trust="predictions", mixer=None, command=None, versions=None)], DATASET, "alice/tiny"
    )
    assert "Nothing can be loaded" in numbers and "nobody but the submitter has run the model" in numbers
    partial = model_card.render([row(max_sequences=20)], DATASET, "alice/tiny")
    assert parsed(partial).data.eval_results is None and "first 20 sequences of each split" in partial
    grown = model_card.render([row(mixer="transformer", state_size=None, state_grows=True)], DATASET, "alice/tiny")
    assert "a state that grows with the sequence" in grown


def test_no_sealed_score():
    bare = rows.make_row(
        sb.get_task("lite"),
        run_id="r",
        name="x",
        trust="weights",
        weights_sha256="0" * 64,
        mixer="gla",
        scores={"test": score(0.5)},
    )
    text = model_card.render([bare], DATASET, "alice/tiny")
    assert (
        "| lite | 1 | - | 50.00 [48.00, 52.00] | **-** | - | - | - |" in text
        and parsed(text).data.eval_results is None
    )
