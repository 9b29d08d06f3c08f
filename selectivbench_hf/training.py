"""Train one model on one task and score it: one function, two doors.

    accelerate launch train.py --task lite_noisy_gaps --mixer gla --hidden_size 64 --num_hidden_layers 2 --output_dir runs/gla
    accelerate launch -m selectivbench_hf.training --config recipe.yaml
    ACCELERATE_USE_CPU=1 accelerate launch --multi_gpu --num_processes 2 --num_machines 1 train.py --task lite     # two CPU processes
    (with --main_process_port 0 several such launches run side by side: each finds a free port)
    accelerate launch train.py --output_dir runs/gla --resume

    result = sb.train(task, model="gla", hidden_size=128)        # or any nn.Module: (B, T, V) -> (B, T, S)
    accelerate launch train.py --task te3 --objective prediction     # the next item's symbol in the place of the state

Every optimiser step takes the next global batch, cuts it over processes and micro-batches, sums the losses of all real steps, sums the
gradients over processes once, and divides by the number of real steps: the result does not depend on the cut (dropout apart, which
each process draws for itself). A run folder holds training_args.yaml, task.json, log.jsonl, checkpoints/, best/, last/, results.jsonl.

Exit codes: 0 finished; 1 failed (NaN, disk full); 2 bad input; 143 after SIGTERM or the launcher's death, 130 after Ctrl-C (both save first).
"""

import contextlib
import os
import sys
import time

from .arguments import TrainingArguments, from_argv, merge
from .checkpointing import CheckpointError
from .errors import InputError, KernelMismatch
from .launching import SharedBuffers, StopFlag, Stopped, leave, make_accelerator, on_main
from .runs import RunFolder, State, TrainingFailed


def train(task, model=None, **fields):
    """Train `model` on `task`, select on validation, score the test splits; writes a run folder.

    Args:
        task: a Task, or anything get_task takes.
        model: a mixer's name (default gla; also as `mixer="gla"`), or a torch.nn.Module mapping float32 (B, T, V) to logits (B, T, S), for a
            recall task int64 ids (B, T), 0..V - 1 and V at padding, to logits (B, T, V).
        fields: fields of TrainingArguments (`hidden_size=128`, `max_steps=300`, `output_dir="runs/x"`), or builder keywords of the task.

    Returns:
        results.Result: `.record` (the line in results.jsonl), `.scores`, `.accuracy(split)`, `.model`, `.output_dir`.

    Raises:
        InputError for bad input; TrainingFailed when the loss is no longer finite (the record says so too); CheckpointError when the
        disk refuses a checkpoint.
    """
    if model is not None and "mixer" in fields:
        given = repr(model) if isinstance(model, str) else f"a {type(model).__name__}"
        raise InputError(
            f"train(...) takes one model: {given} was given, and mixer={fields['mixer']!r} beside it; leave one out"
        )
    module = None if model is None or isinstance(model, str) else model
    mixer = fields.pop("mixer", "gla" if model is None else model if module is None else "module")
    values = merge(("train(...)", {"task": task, "mixer": mixer, **fields}))
    return run(TrainingArguments(**values), module=module)


def main(argv=None) -> int:
    """Command line; returns the exit code."""
    first = os.environ.get("RANK", "0") == "0"
    try:
        with StopFlag().watched() as stop:
            run(from_argv(argv, "train.py", __doc__.split("\n\n")[0]), stop=stop)
        return 0
    except InputError as error:
        code, text = 2, f"error: {error}"
    except Stopped as error:
        code, text = error.code, f"stopped by {error.why}"
    except (TrainingFailed, CheckpointError) as error:
        code, text = 1, f"error: {error}"
    if first:
        print(text, file=sys.stderr, flush=True)
    return code


def run(args: TrainingArguments, module=None, stop: StopFlag | None = None):
    """Train by `args` (`module`: the user's own model in place of a mixer). Returns results.Result; see `train`."""
    from .models.mixers import get_mixer
    from .prediction import check_objective
    from .tasks import get_task

    task = get_task(args.task, **args.task_kwargs)
    check_objective(task, args.objective)
    if module is None and ":" not in str(args.mixer):
        get_mixer(args.mixer)  # a wrong name is told at once: the rest takes seconds to import
    import torch

    for split in args.eval_splits or ():
        if task.check_split(split) == "train":
            raise InputError(
                "eval_splits names splits to score at the end, and train is none of them (its noise changes by epoch)"
            )
    accelerator = make_accelerator(args)
    device = accelerator.device
    with torch.random.fork_rng(devices=[device] if device.type == "cuda" else []):
        ok = False
        try:
            result = _Run(args, task, accelerator, module, stop or StopFlag()).go()
            ok = True
            return result
        finally:
            if args.tracker != "none":
                accelerator.end_training()
            leave(accelerator, together=ok, close=stop is not None)  # a notebook keeps its process group


def _model_fields(args) -> dict:
    """The fields of SelectivBenchConfig that the arguments set, the width apart."""
    names = ("mixer", "num_hidden_layers", "num_heads", "block", "mlp", "objective", "dropout", "mixer_kwargs")
    tied = {} if args.tie_word_embeddings is None else {"tie_word_embeddings": args.tie_word_embeddings}
    return {name: getattr(args, name) for name in names} | tied


def _sizing(args, task, module):
    """The width that match_params or match_state asks for (a models.sizing.Sizing), or None where the width is given."""
    if args.hidden_size is not None:
        return None
    if module is not None:
        raise InputError("match_params and match_state choose the width of a mixer's model; a module has its own")
    from .models import hidden_size_for

    return hidden_size_for(
        num_parameters=args.match_params, state_size=args.match_state, task=task, **_model_fields(args)
    )


def config_for(args, task, module=None):
    """(the SelectivBenchConfig of the model that the arguments ask for, None with a module; models.sizing.Sizing where its width was looked for)."""
    from .models import SelectivBenchConfig

    sizing = _sizing(args, task, module)
    if module is not None:
        return None, sizing
    width = args.hidden_size if sizing is None else sizing.hidden_size
    return SelectivBenchConfig.for_task(task, hidden_size=width, **_model_fields(args)), sizing


class _Run:
    """One run from start, or from a checkpoint, to its record."""

    def __init__(self, args, task, accelerator, module, stop):
        import torch

        from . import models
        from .optimization import Plan, make_optimizer

        self.task, self.accelerator, self.stop, self.device = task, accelerator, stop, accelerator.device
        self.plan = Plan.of(args, task.splits["train"], accelerator.num_processes)
        config, self.sizing = config_for(args, task, module)
        torch.manual_seed(args.model_seed)  # the same on every process: the same first weights
        if module is None:
            model = models.model_class(config)(config)
        elif args.tie_word_embeddings is not None:
            raise InputError("tie_word_embeddings is a choice of a mixer's model; a module has its own head")
        else:
            model = models.wrap_module(module, task, args.objective)
        self.model = model.to(self.device)
        self.folder = RunFolder.open(args, task, accelerator)
        self.args = args.replace(output_dir=str(self.folder.path), task=self.folder.task_name(args))
        if accelerator.num_processes > 1:
            for tensor in (*model.parameters(), *model.buffers()):
                torch.distributed.broadcast(tensor.data, 0)
        self.buffers = SharedBuffers(model, accelerator.num_processes)
        self.optimizer, self.groups = make_optimizer(self.model, args)
        self.parameters = [p for g in self.optimizer.param_groups for p in g["params"]]
        self.state = State()
        self.self_check = None
        self.prefetch = None

    @property
    def main(self):
        return self.accelerator.is_main_process

    def say(self, text):
        if self.main:
            from tqdm.auto import tqdm

            tqdm.write(text, file=sys.stderr)

    # ------------------------------------------------------------ course

    def go(self):
        from .resuming import resume

        try:
            if (done := resume(self)) is not None:
                return done
            self.announce()
            self.check_kernels()
            self.train_all()
            return self.finish()
        except (Stopped, KeyboardInterrupt) as error:
            why = f"stopped by {error.why}" if isinstance(error, Stopped) else "keyboard interrupt"
            with contextlib.suppress(OSError):  # a full disk may refuse the record too
                self.record("interrupted", why)
            raise
        except (TrainingFailed, CheckpointError) as error:
            with contextlib.suppress(OSError):
                self.record("failed", str(error))
            raise
        finally:
            if self.prefetch is not None:
                self.prefetch.close()
            self.folder.close()

    def announce(self):
        """Print the effective configuration and save it; start the tracker."""
        import torch

        from .arguments import SAVED, to_yaml
        from .checkpointing import write_text

        a, p = self.accelerator, self.plan
        if self.state.step == 0 and not self.state.resumes:
            on_main(a, lambda: write_text(self.folder.path / SAVED, to_yaml(self.args)))
        shown = {k: v for k, v in self.args.as_dict().items() if v is not None and v != {}}
        self.say("configuration: " + ", ".join(f"{k}={v}" for k, v in shown.items()))
        if self.sizing is not None:
            self.say(f"matched: {self.sizing.describe()}")
        self.say(
            f"{self.task.describe()}\n{sum(q.numel() for q in self.parameters):,} parameters; kernels: {self.backend()}; {self.device}, "
            f"{a.num_processes} process{'es' if a.num_processes > 1 else ''}, {torch.get_num_threads()} thread(s) each; "
            f"precision: {self.precision()}; {p.total_steps} steps of {p.global_batch} sequences "
            f"({p.accumulation} x {p.micro_batch} per process), warm-up {p.warmup_steps}; run folder: {self.folder.path}"
        )
        if self.args.tracker != "none":
            a.project_configuration.set_directories(str(self.folder.path))
            a.init_trackers(
                "selectivbench", config={k: v if isinstance(v, (int, float)) else str(v) for k, v in shown.items()}
            )

    def backend(self):
        from . import kernels

        return kernels.backend(self.device, self.args.mixer) if self.own_model else None

    def check_kernels(self):
        """On CUDA: the mixer's kernels against the CPU's; TrainingFailed, on every process, where they are wrong on one."""
        if self.device.type != "cuda" or not self.own_model:
            return
        if not self.args.self_check:
            self.self_check = {"status": "skipped", "why": "--self_check false"}
            self.say("notice: the kernels are not checked against the CPU's (--self_check false)")
            return
        from accelerate.utils import gather_object

        from .kernels.selfcheck import check_kernels, told

        fault = None
        try:
            self.self_check = check_kernels(
                self.model.config, self.device, "bf16" if self.accelerator.mixed_precision == "bf16" else "fp32"
            )
        except KernelMismatch as error:
            fault = str(error)
            self.self_check = {"status": "failed", "why": fault}
        faults = gather_object([fault]) if self.accelerator.num_processes > 1 else [fault]
        if fault := next(filter(None, faults), None):
            raise TrainingFailed(fault)
        self.say(told(self.self_check))

    @property
    def own_model(self) -> bool:
        return hasattr(self.model, "save_pretrained")

    def precision(self):
        return "bf16 autocast, fp32 weights" if self.accelerator.mixed_precision == "bf16" else "fp32"

    def train_all(self):
        """All steps from state.step on, with validation, best model, checkpoints and log."""
        from tqdm.auto import tqdm

        from .optimization import Prefetch

        args, plan, state = self.args, self.plan, self.state
        due = state.step and (state.step % args.eval_steps == 0 or state.step == plan.total_steps)
        if due and not any(entry["step"] == state.step for entry in state.history):
            self.validate()  # the run was asked to stop right before it
        if state.step >= plan.total_steps:
            return
        self.prefetch = Prefetch(
            self.task,
            plan,
            state.step,
            self.accelerator.process_index,
            pin=self.device.type == "cuda",
            objective=args.objective,
        )
        self.model.train()
        logged = (state.step, state.seconds)
        bar = tqdm(
            total=plan.total_steps,
            initial=state.step,
            disable=not self.main,
            desc="train",
            unit="step",
            mininterval=0.5,
        )
        with bar:
            while state.step < plan.total_steps:
                started = time.perf_counter()
                stopping = self.step()
                state.seconds += time.perf_counter() - started
                state.step += 1
                bar.set_postfix(loss=f"{state.loss:.3f}", acc=f"{state.token_accuracy:.3f}", refresh=False)
                bar.update()
                last = state.step == plan.total_steps
                if state.step % args.logging_steps == 0 or last:
                    self.log(
                        state.step,
                        loss=state.loss,
                        token_accuracy=state.token_accuracy,
                        learning_rate=state.learning_rate,
                        steps_per_second=(state.step - logged[0]) / max(state.seconds - logged[1], 1e-9),
                    )
                    logged = (state.step, state.seconds)
                if (state.step % args.eval_steps == 0 or last) and not stopping:
                    try:
                        self.validate()
                    except Stopped as error:
                        stopping = error.code
                if state.step % args.save_steps == 0 or last or stopping:
                    self.save()
                if stopping:
                    self.say(
                        f"saved step {state.step} of {plan.total_steps}; go on with --output_dir {self.folder.path} --resume"
                    )
                    raise Stopped(stopping, self.stop.why or "a signal to another process")
        self.prefetch.close()
        self.prefetch = None

    def step(self) -> int:
        """One optimiser step on the next global batch. Returns the exit code that some process was asked to stop with, or 0."""
        import torch
        from torch.nn.functional import cross_entropy

        from .optimization import learning_rate

        args, state, device = self.args, self.state, self.device
        loss_sum = torch.zeros((), dtype=torch.float64, device="cpu" if device.type == "mps" else device)
        right, tokens = torch.zeros_like(loss_sum), torch.zeros_like(loss_sum)
        for _ in range(self.plan.accumulation):
            batch = next(self.prefetch)
            if batch is None:  # the last batch of an epoch may have fewer rows than there are pieces
                continue
            batch = {name: values.to(device, non_blocking=True) for name, values in batch.items()}
            labels = batch.pop("labels")
            with self.accelerator.autocast():
                if self.task.family == "recall":  # the head, with its large vocabulary, only where something is asked
                    asked = labels != -100
                    logits, labels = (
                        self.model.classifier(self.model.hidden(**batch)[asked])[None],
                        labels[asked][None],
                    )
                else:
                    logits = self.model(**batch).logits
            loss = cross_entropy(logits.float().flatten(0, 1), labels.flatten(), ignore_index=-100, reduction="sum")
            loss.backward()
            with torch.no_grad():
                real = labels != -100
                loss_sum += loss.detach()
                right += ((logits.argmax(-1) == labels) & real).sum()
                tokens += real.sum()
        totals = torch.stack([loss_sum, right, tokens, torch.zeros_like(tokens) + self.stop.code])
        self.sum_over_processes(totals)
        if (shared := self.buffers.share()) and not any("follow process 0" in note for note in state.notes):
            state.notes.append(f"{shared} buffer(s) of the model change in training and follow process 0")
            self.say("notice: " + state.notes[-1])
        loss_sum, right, tokens, stopping = totals.tolist()
        grads = [p.grad for p in self.parameters if p.grad is not None]
        torch._foreach_div_(grads, tokens)
        norm = torch.nn.utils.clip_grad_norm_(self.parameters, args.max_grad_norm or float("inf"))
        state.loss, state.token_accuracy = loss_sum / tokens, right / tokens
        for name, value in (("loss", state.loss), ("gradient's norm", float(norm))):
            if value - value != 0:  # NaN or infinite; the same on every process
                raise TrainingFailed(f"the {name} became {value} at step {state.step + 1} of {self.plan.total_steps}")
        state.learning_rate = learning_rate(args, self.plan, state.step)
        for group in self.optimizer.param_groups:
            group["lr"] = state.learning_rate
        self.optimizer.step()
        self.optimizer.zero_grad(set_to_none=True)
        return 0 if not stopping else self.stop.code or 143

    def sum_over_processes(self, totals):
        """Sum `totals` and all gradients in place over processes, in one buffer, after the last backward pass.

        No DistributedDataParallel: it averages over processes where a sum is needed, and its hooks wait for ever on a process whose
        piece has no rows.
        """
        if self.accelerator.num_processes == 1:
            return
        import torch
        from torch.distributed import all_reduce

        flags = torch.tensor([p.grad is not None for p in self.parameters], dtype=torch.float32, device=self.device)
        buffer = torch.cat(
            [*((torch.zeros_like(p) if p.grad is None else p.grad).float().flatten() for p in self.parameters), flags]
        )
        all_reduce(totals)
        all_reduce(buffer)
        present, at = buffer[-len(self.parameters) :].tolist(), 0
        for p, some in zip(self.parameters, present, strict=True):
            if some:
                p.grad = buffer[at : at + p.numel()].view_as(p).to(p.dtype)
            at += p.numel()

    def validate(self):
        """Score validation; keep the model in best/ when it is the best so far by prediction.standing (ties: earlier)."""
        from .prediction import standing

        if not self.task.splits["validation"]:
            return
        scores = self.evaluate(["validation"])["validation"]
        state = self.state
        if scores["loss"] - scores["loss"] != 0:
            raise TrainingFailed(
                f"the validation loss became {scores['loss']} after step {state.step} of {self.plan.total_steps}"
            )
        entry = {
            "step": state.step,
            **{k: scores[k] for k in ("accuracy", "accuracy_first", "accuracy_last", "loss", "correct", "total")},
            **{k: scores[k] for k in ("kl", "cross_entropy") if k in scores},
        }
        state.history.append(entry)
        self.log(state.step, **{f"validation_{k}": v for k, v in entry.items() if k != "step"})
        better = state.best is None or standing(entry) > standing(state.best)
        if better:
            state.best = {"step": state.step, **scores}
            on_main(self.accelerator, lambda: self.folder.save_model("best", self.model, state.step, entry))
        kl = f"KL {entry['kl']:.4f} nats per item, " if entry.get("kl") is not None else ""
        self.say(
            f"step {state.step}: validation {kl}accuracy {entry['accuracy']:.4f} (first step {entry['accuracy_first']:.4f}, last step "
            f"{entry['accuracy_last']:.4f}), loss {entry['loss']:.4f}{', best so far' if better else ''}"
        )

    def evaluate(self, splits, notice=False, pace=None):
        from .evaluation import evaluate

        args = self.args
        scores = evaluate(
            self.model,
            self.task,
            splits,
            max_sequences=args.max_eval_sequences,
            batch_size=args.per_device_eval_batch_size,
            detail=args.detail,
            accelerator=self.accelerator,
            stop=self.stop,
            say=self.say if notice else None,
            pace=pace,
        )
        self.state.eval_seconds += sum(s["seconds"] for s in scores.values())
        self.model.train()
        return scores

    def log(self, step, **values):
        if self.main:
            self.folder.log({"step": step, **values})
        if self.args.tracker != "none":
            self.accelerator.log({k: v for k, v in values.items() if v is not None}, step=step)

    def save(self):
        """Checkpoint: weights, optimiser, every process's random states, course; the same outcome on every process."""
        from accelerate.utils import gather_object

        from .resuming import random_state

        states = (
            gather_object([random_state(self.device)])
            if self.accelerator.num_processes > 1
            else [random_state(self.device)]
        )
        on_main(self.accelerator, lambda: self.folder.save_checkpoint(self, states))

    # ------------------------------------------------------------ end

    def finish(self):
        """Keep the last model, take the best on validation, score the test splits once, and write the record."""
        from .evaluation import not_finite
        from .results import Result, table
        from .runs import load_weights

        args, state = self.args, self.state
        on_main(self.accelerator, lambda: self.folder.save_model("last", self.model, state.step, None))
        which = "best" if state.best is not None else "last"
        if which == "best" and state.best["step"] != state.step:
            load_weights(self.model, self.folder.path / "best")
        scores = {"validation": {k: v for k, v in state.best.items() if k != "step"}} if which == "best" else {}
        splits = self.task.test_splits if args.eval_splits is None else args.eval_splits
        pace = (
            scores["validation"]["steps"] / scores["validation"]["seconds"] / self.plan.processes if scores else None
        )
        if splits := [s for s in splits if s not in scores]:
            scores |= self.evaluate(splits, notice=True, pace=pace)
        state.notes += not_finite(scores)  # null in the record, so it says why
        record = self.record("finished", None, scores, which)
        for line in not_finite(scores):
            self.say("notice: " + line)
        self.say(table(scores))
        if self.task.family == "recall":
            self.say(self.task.describe_chance())
        self.say(
            f"finished {state.step} steps; scored the {which} model; record: {self.folder.path / 'results.jsonl'}"
        )
        return Result(record, self.folder.path, self.model)

    def record(self, status, reason, scores=None, which=None):
        """Write the run's line in results.jsonl (on the main process); returns it everywhere."""
        from .results import build_record, write

        record = build_record(self, status, reason, scores or {}, which)
        if status == "finished":  # all processes are here; where a run breaks off they may not be
            return on_main(self.accelerator, lambda: write(self.folder.path, record))
        return write(self.folder.path, record) if self.main else record


if __name__ == "__main__":
    sys.exit(main())
