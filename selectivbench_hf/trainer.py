"""transformers' Trainer with the noise of our splits: one collator serves training and evaluation there, and the two have different noise."""

import re

from transformers import Trainer, TrainerCallback

from .errors import InputError
from .features import Collator
from .tasks import get_task


class StateTrainer(Trainer):
    """A `Trainer` for a task: rows of `load_dataset("selectivbench", ...)` in, features with the right noise out.

    Training rows get the noise of (data_seed, epoch, example id), evaluation rows that of (their split, example id), so that `eval_loss` is the
    loss of `selectivbench evaluate`. A data set's split is read from the data set itself (`dataset.split`). Labels are what the model was made
    for: states, or with objective="prediction" in its configuration the next symbols.

    Args:
        task: a Task or a task's name.
        data_seed: seed of the training noise.
        the rest: as for `Trainer`, without `data_collator`.
    """

    def __init__(self, *args, task, data_seed: int = 0, **keywords):
        if keywords.get("data_collator") is not None:
            raise InputError(
                "StateTrainer makes its own collators; use transformers' Trainer with sb.Collator for another"
            )
        self.task, self.data_seed = get_task(task), data_seed
        model = args[0] if args else keywords.get("model")
        self.objective = getattr(getattr(model, "config", None), "objective", "classification")
        super().__init__(*args, data_collator=self._collator("train"), **keywords)
        self.add_callback(_Epochs(self.data_collator))

    def _collator(self, split):
        return Collator(self.task, split, seed=self.data_seed, objective=self.objective)

    def get_eval_dataloader(self, eval_dataset=None):
        return self._with_noise_of(eval_dataset, super().get_eval_dataloader)

    def get_test_dataloader(self, test_dataset):
        return self._with_noise_of(test_dataset, super().get_test_dataloader)

    def _with_noise_of(self, dataset, loader):
        rows = (
            self.eval_dataset
            if dataset is None
            else self.eval_dataset[dataset]
            if isinstance(dataset, str)
            else dataset
        )
        name = re.match(r"\w+", str(getattr(rows, "split", None) or ""))
        if name is None:
            raise InputError(
                "the evaluation data set does not say which split it is (dataset.split); take it from load_dataset, or map it there"
            )
        training, self.data_collator = self.data_collator, self._collator(name[0])
        try:
            return loader(dataset)
        finally:
            self.data_collator = training


class _Epochs(TrainerCallback):
    def __init__(self, collator):
        self.collator = collator

    def on_epoch_begin(self, args, state, control, **keywords):
        self.collator.set_epoch(int(state.epoch or 0))
