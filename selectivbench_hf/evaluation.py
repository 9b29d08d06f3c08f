"""Score a model on splits of a task.

Items are scored as metrics.ItemAccumulator says. The head is applied a few hundred steps at a time, so that (B, T, S) never exists for models that
have `.hidden` and `.classifier`. Batches are the same for any number of processes (whole batches are dealt out, results summed in their
order), weights and arithmetic are float32, and noise is a function of the example: so counts are the same in every evaluation.

Axes: B batch, T time, D channels, S states.
"""

import math
import sys
import time
import warnings

from .console import duration

CHUNK = 256  # steps that pass the head at once; fixed, so that the order of every sum is
_STEPS = 1 << 16  # B*T of one forward pass
_PROBABILITIES = 1 << 25  # B*CHUNK*S, or B*T*S for a module that gives whole logits


def batch_rows(longest: int, num_states: int, batch_size: int, chunked: bool) -> int:
    """Sequences per batch: at most `batch_size`, fewer where B*T or B*T*S would be large; at least 1."""
    rows = min(_STEPS // max(longest, 1), _PROBABILITIES // (num_states * min(CHUNK, max(longest, 1))))
    if not chunked:
        rows = min(rows, 4 * _PROBABILITIES // (num_states * max(longest, 1)))
    return max(1, min(batch_size, rows))


def evaluate(
    model,
    task,
    splits=None,
    *,
    max_sequences=None,
    batch_size=64,
    objective=None,
    detail=False,
    accelerator=None,
    stop=None,
    say=None,
    pace=None,
) -> dict:
    """Score a model on whole splits.

    Args:
        model: SelectivBenchForStateClassification or ...ForCausalLM, or any nn.Module (B, T, V) -> (B, T, S), in prediction (B, T, V),
            for a recall task (B, T) ids -> (B, T, V); scored in eval mode on its device in float32.
        task: a Task or its name. splits: names; default: the test splits.
        max_sequences: only the first so many of each split.
        batch_size: most sequences in a forward pass; long sequences take fewer.
        objective: "classification" or "prediction"; default: the model's own, classification for a bare module.
        detail: add `detail`, the finer scores of detail.finer.
        accelerator: given with several processes, each takes its share of the batches; every process returns the whole.
        stop: launching.StopFlag; Stopped is raised on all processes once it is set on one.
        say: called with lines for the user (batch sizes, estimate). pace: steps per second for the estimate; default: measured.

    Returns:
        dict split -> counts, accuracies, loss (None over no items), steps, sequences, `interval` of the accuracy, seconds,
        sequences_per_second; with distractors `headline` (see detail.headline); in prediction also what prediction.PredictionScores
        has, `kl_interval`, and `kl_reason`, why there is no KL.
    """
    from .layout import load_split
    from .models import objective_of, wrap_module
    from .prediction import check_objective, num_classes
    from .tasks import get_task

    task = get_task(task)
    splits = [task.check_split(s) for s in (task.test_splits if splits is None else splits)]
    model = wrap_module(model, task, objective)
    objective = check_objective(task, objective_of(model))
    classes = num_classes(task, objective)
    work = {}
    for split in splits:
        steps = load_split(task, split).steps()[:max_sequences]
        chunked = type(model.classifier).__name__ != "Identity"
        rows = batch_rows(int(steps.max()) if len(steps) else 1, classes, batch_size, chunked)
        if say and rows < min(batch_size, len(steps)):
            say(
                f"{split}: sequences of up to {int(steps.max()):,} steps are scored {rows} at a time instead of {batch_size}"
            )
        work[split] = (steps, rows)
    training = model.training
    model.eval()
    try:
        scores = _evaluate(model, task, work, objective, detail, accelerator, stop, say, pace)
    finally:
        model.train(training)
    if accelerator is None:
        for line in not_finite(scores):
            warnings.warn(line, RuntimeWarning, stacklevel=2)
    return scores


def not_finite(scores: dict) -> list[str]:
    """One line for each split whose loss is NaN or infinite: its counts mean nothing."""
    return [
        f"{split}: the loss is not finite ({s['loss']}), as it is where weights are NaN or infinite: these scores mean nothing"
        for split, s in scores.items()
        if s["loss"] is not None and not math.isfinite(s["loss"])
    ]


def _evaluate(model, task, work, objective, detail, accelerator, stop, say, pace):
    from tqdm.auto import tqdm

    from .detail import finer, headline
    from .metrics import ItemScores, Outcomes
    from .prediction import PredictionScores, law_unknown

    nothing = PredictionScores() if objective == "prediction" else ItemScores()

    rank, processes = (accelerator.process_index, accelerator.num_processes) if accelerator else (0, 1)
    left = sum(int(steps.sum()) for steps, _ in work.values())
    sequences = sum(len(steps) for steps, _ in work.values())
    bar = tqdm(total=sequences, disable=rank != 0, leave=bool(say), desc="score", unit="seq", mininterval=0.5)
    out = {}

    def tell(pace):
        if say and sequences:
            say(
                f"scoring {', '.join(work)}: {sequences:,} sequences, {left:,} steps; about {duration(left / pace / processes)} "
                f"at {pace:,.0f} steps/s per process (attention slows down on long sequences)"
            )

    if pace:
        tell(pace)
    with bar:
        for split, (steps, rows) in work.items():
            started = time.perf_counter()
            parts, stopped = [], 0
            for number, first in enumerate(range(0, len(steps), rows)):
                if number % processes != rank:
                    continue
                if stop is not None and stop.code:
                    stopped = stop.code
                    break
                ids = range(first, min(first + rows, len(steps)))
                begun = time.perf_counter()
                parts.append((number, *score_batch(model, task, split, ids)))
                if pace is None:
                    pace = int(steps[first : first + rows].sum()) / max(time.perf_counter() - begun, 1e-9)
                    tell(pace)
                bar.update(min(len(ids) * processes, bar.total - bar.n))
            if processes > 1:
                from accelerate.utils import gather_object

                gathered = gather_object([(parts, stopped)])
                parts, stopped = [p for piece, _ in gathered for p in piece], max(code for _, code in gathered)
            if stopped:
                from .launching import Stopped

                raise Stopped(stopped, (stop and stop.why) or "a signal to another process")
            parts.sort(key=lambda p: p[0])
            total, outcomes = sum((p[1] for p in parts), nothing), Outcomes.join(p[2] for p in parts)
            seconds = time.perf_counter() - started
            rate = total.sequences / seconds if total.sequences else None
            out[split] = {**total.as_dict(), "interval": outcomes.interval()}
            if objective == "prediction":
                out[split] |= {"kl_interval": outcomes.kl_interval(), "kl_reason": law_unknown(task)}
                if task.ceiling_note and out[split]["kl"] is not None:
                    out[split]["law_note"] = task.ceiling_note
            if (own := headline(task, split, outcomes)) is not None:
                out[split]["headline"] = own
            if detail:
                out[split]["detail"] = finer(task, split, outcomes)
            out[split] |= {"seconds": seconds, "sequences_per_second": rate}
    return out


def score_batch(model, task, split: str, example_ids):
    """(metrics.ItemScores, metrics.Outcomes) of the given sequences; the model gives hidden states (B, T, D), the head is applied CHUNK
    steps at a time."""
    import torch

    from .features import make_batch
    from .metrics import ItemAccumulator
    from .models import objective_of
    from .optimization import input_name
    from .prediction import PredictionAccumulator, law_unknown, next_laws

    objective = objective_of(model)
    batch = make_batch(task, split, example_ids, objective=objective)
    parameter = next(model.parameters(), None)
    device = parameter.device if parameter is not None else "cpu"
    name = input_name(task)
    inputs, labels, item_ids = (torch.from_numpy(batch[k]).to(device) for k in (name, "labels", "item_ids"))
    with torch.inference_mode():
        hidden = model.hidden(**{name: inputs})
        del inputs
        if task.family == "recall":
            hidden, labels, item_ids = _asked(hidden, labels, item_ids)
        if objective == "prediction":
            laws = None if law_unknown(task) else next_laws(task, split, batch["example_id"])
            scores = PredictionAccumulator(labels, item_ids, laws)
        else:
            scores = ItemAccumulator(labels, item_ids)
        with _deterministic(hidden.is_cuda):
            for start in range(0, labels.shape[1], CHUNK):
                scores.add(model.classifier(hidden[:, start : start + CHUNK]), start)
    return scores.scores(), scores.outcomes()


def _asked(hidden, labels, item_ids):
    """The steps of each sequence that ask something, in their order, so that a head with a large vocabulary is applied to these alone:
    hidden (B, Q, D), labels and item_ids (B, Q), filled up with -100 and -1 where a sequence asks less than another."""
    import torch

    asked = labels >= 0
    order = torch.argsort((~asked).byte(), dim=1, stable=True)[:, : max(1, int(asked.sum(1).max()))]
    return (
        hidden.gather(1, order[..., None].expand(-1, -1, hidden.shape[2])),
        labels.gather(1, order),
        item_ids.gather(1, order),
    )


class _deterministic:
    """On CUDA, sums by index in a fixed order (atomics have none); restores the former setting."""

    def __init__(self, on):
        self.on = on

    def __enter__(self):
        if self.on:
            import torch

            self.kept = (
                torch.are_deterministic_algorithms_enabled(),
                torch.is_deterministic_algorithms_warn_only_enabled(),
            )
            torch.use_deterministic_algorithms(True, warn_only=True)

    def __exit__(self, *error):
        if self.on:
            import torch

            torch.use_deterministic_algorithms(self.kept[0], warn_only=self.kept[1])


def main(argv=None) -> int:
    """`selectivbench evaluate`, also as `accelerate launch -m selectivbench_hf.evaluation`; returns the exit code."""
    from .evaluate_command import main as run

    return run(argv)


if __name__ == "__main__":
    sys.exit(main())
