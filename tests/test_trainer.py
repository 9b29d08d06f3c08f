"""StateTrainer: Trainer's loss is the benchmark's."""

import numpy as np
import pytest

import selectivbench_hf as sb
from selectivbench_hf import InputError

SIZES = dict(num_train=32, num_validation=8, num_test=8, num_items=10)


@pytest.fixture()
def parts(tmp_path):
    from datasets import load_dataset
    from transformers import TrainingArguments

    task = sb.get_task("lite_noisy_gaps", **SIZES)
    data = load_dataset("selectivbench", "lite_noisy_gaps", cache_dir=str(tmp_path / "cache"), **SIZES)
    model = sb.SelectivBenchForStateClassification(
        sb.SelectivBenchConfig.for_task(task, mixer="transformer", hidden_size=16, num_hidden_layers=1, dropout=0.0)
    )
    args = TrainingArguments(
        str(tmp_path / "run"), num_train_epochs=2, per_device_train_batch_size=8, per_device_eval_batch_size=8, report_to="none", use_cpu=True,
        eval_strategy="epoch", save_strategy="epoch", load_best_model_at_end=True, gradient_accumulation_steps=2, disable_tqdm=True,
    )  # fmt: skip
    return task, data, model, args


def test_eval_loss_is_the_validation_loss(parts):
    from selectivbench_hf.evaluation import evaluate

    task, data, model, args = parts
    trainer = sb.StateTrainer(
        model=model, task=task, args=args, train_dataset=data["train"], eval_dataset=data["validation"]
    )
    seen = []
    collate = trainer.data_collator.__class__.__call__

    def spy(self, rows):
        seen.append((self.split, self.epoch))
        return collate(self, rows)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(sb.Collator, "__call__", spy)
        trainer.train()
        told = trainer.evaluate()["eval_loss"]
        other = trainer.evaluate(data["test_gap_5"])["eval_loss"]
    scores = evaluate(model, task, ["validation", "test_gap_5"], max_sequences=None)
    assert told == pytest.approx(scores["validation"]["loss"], rel=1e-5)
    assert other == pytest.approx(scores["test_gap_5"]["loss"], rel=1e-5)
    assert {s for s in seen if s[0] == "train"} == {("train", 0), ("train", 1)} and ("validation", 0) in seen
    predicted = trainer.predict(data["test_gap_5"])
    assert np.isfinite(predicted.metrics["test_loss"])


def test_what_it_refuses(parts):
    task, data, model, args = parts
    with pytest.raises(InputError, match="makes its own collators"):
        sb.StateTrainer(
            model=model, task=task, args=args, data_collator=sb.Collator(task), eval_dataset=data["validation"]
        )
    nameless = data["validation"].select(range(4)).with_format(None)
    nameless._split = None
    trainer = sb.StateTrainer(model=model, task=task, args=args, train_dataset=data["train"], eval_dataset=nameless)
    with pytest.raises(InputError, match="does not say which split it is"):
        trainer.evaluate()
