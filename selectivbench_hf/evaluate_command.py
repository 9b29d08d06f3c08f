"""`selectivbench evaluate`: recompute a saved model's score, compare it with the record, and on request write its finer scores."""

import sys
from pathlib import Path

from . import detail_report
from .errors import InputError, KernelMismatch, unknown
from .evaluation import evaluate, not_finite
from .prediction import OBJECTIVES, check_objective
from .saved import load_model, open_saved


def compare(
    scores: dict, record: dict | None, task, max_sequences, backend: str, device: str, why: str | None = None
) -> tuple[dict, list[str], bool]:
    """(split -> equal?, lines that tell every difference, whether the outcome is a failure) of new scores against a record.

    `why`: the reason where there is no record, or none with scores."""
    equal, lines, failed = {}, [], False
    if record is None or not record["scores"]:
        return equal, [f"no recorded score to compare with{': ' + why if why else ''}"], False
    same = (
        record["model"]["kernel_backend"] == backend
        and record["hardware"]["device"].split(",")[0] == device.split(",")[0]
    )
    for split, new in scores.items():
        old = record["scores"].get(split)
        if old is None or record["task"]["split_fingerprints"].get(split) != task.split_fingerprint(split):
            lines.append(f"{split}: not in the record (another task or split), nothing to compare")
            continue
        if new["sequences"] != old["sequences"]:
            lines.append(
                f"{split}: {new['sequences']} sequences here and {old['sequences']} in the record, not comparable"
            )
            continue
        keys = ("correct", "correct_first", "correct_last", "total")
        differ = [f"{k} {new[k]} here, {old[k]} recorded" for k in keys if new[k] != old[k]]
        equal[split] = not differ
        if differ:
            lines.append(f"{split}: DIFFERS: " + "; ".join(differ))
            failed |= same
    if equal and all(equal.values()):
        lines.append(f"equal to the record to the last count on {len(equal)} split{'s' if len(equal) > 1 else ''}")
    elif equal and not same:
        lines.append(
            f"recorded on {record['hardware']['device']} with {record['model']['kernel_backend']}, here {device} with {backend}: "
            "another backend, so single items may differ"
        )
    return equal, lines, failed


def main(argv=None) -> int:
    """`selectivbench evaluate`; returns the exit code: 0; 2 for bad input; 1 when the record differs on the same backend, when a run has no record
    to compare with, or when a loss is not finite."""
    from .launching import Stopped

    try:
        return _main(argv)
    except InputError as error:
        print(f"error: {error}", file=sys.stderr)
        return 2
    except KernelMismatch as error:
        print(f"error: {error}", file=sys.stderr)
        return 1
    except Stopped as error:
        return error.code


def _check_kernels(accelerator, config, wanted: bool, say) -> None:
    """On CUDA: the forward kernels against the CPU's, before anything is scored."""
    if accelerator.device.type != "cuda":
        return
    if not wanted:
        say("notice: the kernels are not checked against the CPU's (--self_check false)")
        return
    from .kernels.selfcheck import check_kernels, told

    say(told(check_kernels(config, accelerator.device, train=False)))


def _parse(argv):
    import argparse

    from .arguments import Plain, task_keywords, task_value
    from .task_flags import FLAGS

    class Parser(argparse.ArgumentParser):
        def error(self, message):
            raise InputError(message)

    parser = Parser(
        prog="selectivbench evaluate",
        allow_abbrev=False,
        description="Recompute the score of a saved model and compare it with its record.",
    )
    parser.add_argument(
        "run", metavar="RUN_OR_REPO", help="run folder, folder with a saved model, or OWNER/NAME on the Hub"
    )
    parser.add_argument("--task", help="task name or task JSON; default: the run's own")
    parser.add_argument(
        "--mixer",
        metavar="MODULE:FUNCTION",
        help="a mixer from outside this package that the model has: it is imported only when it is named here",
    )
    parser.add_argument("--splits", nargs="+", help="default: those of the record, else the test splits")
    parser.add_argument(
        "--max_eval_sequences", metavar="N", help="first N sequences of each split; default: as in the record"
    )
    parser.add_argument("--per_device_eval_batch_size", metavar="N", help="default: as in the record, else 64")
    parser.add_argument(
        "--self_check", default="true", metavar="true|false", help="on CUDA: kernels against the CPU's"
    )
    parser.add_argument(
        "--objective",
        metavar="classification|prediction",
        help="default, and only choice: what the model was made for",
    )
    parser.add_argument(
        "--detail",
        action="store_true",
        help="also write the score by item index, distance since the last #, gap, distractors ... as JSON and a figure",
    )
    parser.add_argument("--output", metavar="DIR", help="where --detail writes; default: the run folder")
    parser.add_argument("--json", action="store_true", help="print an array of objects, one a split")
    group = parser.add_argument_group("builder keywords of the task")
    for name in task_keywords():
        _, metavar, line = FLAGS[name]
        nargs = "+" if name == "test_gaps" else None
        group.add_argument("--" + name, metavar=metavar, default=argparse.SUPPRESS, nargs=nargs, help=line)
    known, rest = parser.parse_known_args(argv)
    if rest:
        flags = [a for action in parser._actions for a in action.option_strings if a.startswith("--")]
        raise unknown("flag", rest[0].split("=")[0], flags)
    keywords = {
        n: task_value(n, [Plain(x) for x in v] if isinstance(v, list) else v if v[:1] in "[{" else Plain(v))
        for n, v in vars(known).items()
        if n in task_keywords()
    }
    return known, keywords


def _place(known, folder) -> Path | None:
    """The folder that --detail writes to; InputError, before anything is scored, where there is none."""
    if not known.detail:
        return None
    if known.output is None:
        local = Path(folder)
        if not local.is_dir():
            raise InputError(f"{known.run} is no folder here: say with --output DIR where --detail shall write")
        return local.parent if (local.parent / "run.json").is_file() else local
    try:
        Path(known.output).mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise InputError(f"cannot write to --output {known.output}: {error.strerror or error}") from None
    return Path(known.output)


def _main(argv):
    known, keywords = _parse(argv)
    from .arguments import convert
    from .checkpointing import strict_json
    from .results import device_name, finite, table
    from .tasks import get_task

    limits = {
        n: convert(n, (int, True), getattr(known, n)) for n in ("max_eval_sequences", "per_device_eval_batch_size")
    }
    wanted = convert("self_check", (bool, False), known.self_check)
    if any(v is not None and v < 1 for v in limits.values()):
        raise InputError("--max_eval_sequences and --per_device_eval_batch_size must be at least 1")
    if known.output is not None and not known.detail:
        raise InputError("--output says where --detail writes; give --detail too")
    if known.objective not in (None, *OBJECTIVES):
        raise unknown("objective", known.objective, OBJECTIVES)
    folder, record, why = open_saved(known.run)
    place = _place(known, folder)
    if known.task is not None:
        task = get_task(known.task, **keywords)
    else:
        places = (Path(known.run) / "task.json", Path(known.run).parent / "task.json")
        saved = next((p for p in places if p.is_file()), None)
        if saved is None:
            raise InputError("--task is needed: this model has no run folder that says which task it was trained on")
        try:
            task = get_task(str(saved), **keywords)
        except InputError as error:
            raise InputError(f"{saved}: {error}") from None
    own = record is not None and record["task"]["fingerprint"] == task.fingerprint
    splits = known.splits or ([*record["scores"]] if own and record["scores"] else task.test_splits)
    for split in splits:
        task.check_split(split)
    model = load_model(folder, known.mixer)
    check_objective(task, model.config.objective)
    if (model.config.num_symbols, model.config.num_states) != (task.num_symbols, task.num_states):
        raise InputError(
            f"the model was built for {model.config.num_symbols} symbols and {model.config.num_states} states; {task.name} has "
            f"{task.num_symbols} and {task.num_states}"
        )
    if task.family == "grammar" and model.config.input_channels != task.num_channels:
        raise InputError(
            f"the model was built for {model.config.input_channels} channels and {task.name}, as its symbols are shown, has {task.num_channels}"
        )
    maximum = limits["max_eval_sequences"] or (record["evaluation"]["max_sequences"] if own else None)
    batch_size = limits["per_device_eval_batch_size"] or (
        record["arguments"].get("per_device_eval_batch_size", 64) if record else 64
    )

    from . import kernels
    from .launching import check_processes, leave, new_accelerator

    accelerator = new_accelerator()
    check_processes(accelerator.num_processes)
    main_process = accelerator.is_main_process
    model = model.float().to(accelerator.device)

    def say(line):
        if main_process:
            print(line, file=sys.stderr, flush=True)

    backend = kernels.backend(accelerator.device, model.config.mixer)
    say(
        f"{task.describe()}; model: {folder}; kernels: {backend}; {accelerator.device}, {accelerator.num_processes} process(es)"
        + (f"; the first {maximum} sequences of each split" if maximum else "")
    )
    _check_kernels(accelerator, model.config, wanted, say)
    scores = evaluate(
        model,
        task,
        splits,
        max_sequences=maximum,
        batch_size=batch_size,
        objective=known.objective,
        detail=known.detail,
        accelerator=accelerator,
        say=say,
    )
    bad, scores = not_finite(scores), finite(scores)
    leave(accelerator)
    equal, lines, failed = compare(scores, record, task, maximum, backend, device_name(accelerator.device), why)
    chosen = known.task or known.splits or keywords or limits["max_eval_sequences"]
    failed |= bool(bad) or bool(
        (record or why) and not equal and not chosen
    )  # a run's own score, and none to hold it to
    lines = bad + lines
    if main_process and known.detail:
        stem = "detail" if own else f"detail_{task.name}_{task.fingerprint[:8]}"
        lines += detail_report.write(place, stem, task, str(known.run), model.config.objective, scores)
    if main_process:
        if known.json:
            print(
                strict_json(
                    [{"name": split, **s, "equal_to_record": equal.get(split)} for split, s in scores.items()],
                    indent=1,
                )
            )
        else:
            print(table(scores))
            if task.family == "recall":
                print(task.describe_chance())
        for line in lines:
            print(line, file=sys.stderr if known.json else sys.stdout)
    return 1 if failed else 0
