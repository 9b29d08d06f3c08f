"""`selectivbench demo`: the main job at laptop size, from the grammar to a figure, in minutes.

    selectivbench demo                                    # recipes/demo.yaml into demo/
    selectivbench demo --output mine --recipe mine.yaml
    selectivbench demo --mixers gla transformer --max_steps 300

One training for each mixer under the same budget, scored on gaps from 1 to 100 steps and, as transfer, on the plain task. Each mixer runs in a
process of its own, as many at a time as the CPU has cores (one at a time on a GPU). What is finished is kept: a rerun with the same settings
trains only what is missing, and goes on from the last checkpoint of what was interrupted.

Writes into the output folder: report.md, figure.png, results.jsonl (one line a mixer), runs/MIXER/ (run folders of train.py), logs/MIXER.log.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import time
from pathlib import Path

from . import __version__, resources
from .children import leave_with_parent
from .errors import InputError, unknown

SETTINGS = ("task", "mixers", "training", "sequences", "transfer", "transfer_sequences")


def main(argv=None) -> int:
    """Command line; returns the exit code: 0, or 1 when a mixer failed."""
    arguments = _parse(argv)
    recipe = read_recipe(arguments.recipe)
    if arguments.mixers:
        recipe["mixers"] = arguments.mixers
    if arguments.max_steps:
        recipe["training"]["max_steps"] = arguments.max_steps
    rows = run(recipe, Path(arguments.output), workers=arguments.workers)
    return 1 if any(row["status"] != "finished" for row in rows) else 0


def _parse(argv):
    from .cli import Parser, _number

    parser = Parser(prog="selectivbench demo", description=__doc__)
    parser.add_argument(
        "--output", default="demo", metavar="DIR", help="folder for report, figure, records and runs (default demo)"
    )
    parser.add_argument(
        "--recipe", metavar="FILE", help="YAML of the settings (default: recipes/demo.yaml of the package)"
    )
    parser.add_argument("--mixers", nargs="+", metavar="MIXER", help="only these mixers (see `selectivbench models`)")
    parser.add_argument("--max_steps", type=_number, metavar="N", help="optimiser steps of each training")
    parser.add_argument(
        "--workers", type=_number, metavar="N", help="trainings at a time (default: one a core; on a GPU one)"
    )
    return parser.parse_args(sys.argv[1:] if argv is None else argv)


def read_recipe(file=None) -> dict:
    """The settings from a YAML file (default: the package's recipes/demo.yaml), checked; InputError names what is unknown."""
    from .arguments import kinds, load_yaml
    from .tasks import get_task

    path = Path(file) if file else resources.path("recipes/demo.yaml")
    recipe = load_yaml(path)
    for name in recipe:
        if name not in SETTINGS:
            raise unknown("setting", name, SETTINGS, str(path))
    missing = [name for name in SETTINGS if name not in recipe]
    if missing:
        raise InputError(f"{path} lacks the setting {missing[0]!r}")
    for name in ("training", "sequences"):
        if not isinstance(recipe[name], dict):
            raise InputError(f"{name} in {path} must be a mapping")
    for name in recipe["training"]:
        if name not in kinds() or name in ("task", "task_kwargs", "mixer", "output_dir", "resume", "eval_splits"):
            raise unknown(
                "training argument",
                name,
                [k for k in kinds() if k not in ("task", "mixer", "output_dir", "resume")],
                str(path),
            )
    task = get_task(str(recipe["task"]))
    get_task(str(recipe["transfer"]))
    recipe["task"], recipe["transfer"] = str(recipe["task"]), str(recipe["transfer"])
    if not isinstance(recipe["mixers"], list) or not recipe["mixers"]:
        raise InputError(f"mixers in {path} must be a list of at least one mixer")
    recipe["mixers"] = [str(m) for m in recipe["mixers"]]
    recipe["sequences"] = {
        task.check_split(str(s)): _whole(n, f"sequences.{s} in {path}") for s, n in recipe["sequences"].items()
    }
    recipe["transfer_sequences"] = _whole(recipe["transfer_sequences"], f"transfer_sequences in {path}")
    recipe["training"] = {k: str(v) if isinstance(v, str) else v for k, v in recipe["training"].items()}
    from .models.mixers import MIXERS

    for mixer in recipe["mixers"]:
        if mixer not in MIXERS:
            raise unknown("mixer", mixer, MIXERS, str(path))
    return recipe


def _whole(value, where) -> int:
    if not str(value).isdigit() or int(value) < 1:
        raise InputError(f"{where} must be a whole number of at least 1, got {value!r}")
    return int(value)


def run(recipe: dict, output: Path, workers: int | None = None) -> list[dict]:
    """Train and score every mixer of the recipe, then write the report; returns the rows of results.jsonl in the recipe's order."""
    from . import demo_report

    if output.exists() and not output.is_dir():
        raise InputError(f"{output} is a file; --output must be a folder")
    from .models.mixers import MIXERS

    for mixer in recipe["mixers"]:
        if mixer not in MIXERS:
            raise unknown("mixer", mixer, MIXERS)
    for folder in (output / "runs", output / "logs"):
        folder.mkdir(parents=True, exist_ok=True)
    began, done = time.perf_counter(), {}
    for mixer in recipe["mixers"]:
        row = finished(recipe, output, mixer)
        if row:
            print(f"{mixer}: finished before with the same settings; kept")
            done[mixer] = row
    todo = [m for m in recipe["mixers"] if m not in done]
    if todo:
        _run_all(todo, recipe, output, workers)
    for mixer in todo:
        done[mixer] = finished(recipe, output, mixer) or {"name": mixer, "status": "failed", "settings": settings(recipe, mixer),
                                                         "reason": _last_line(output / f"logs/{mixer}.log")}  # fmt: skip
    rows = [done[m] for m in recipe["mixers"]]
    _write_rows(output / "results.jsonl", rows)
    text = demo_report.write(recipe, rows, output)
    print("\n" + text)
    minutes = (time.perf_counter() - began) / 60
    print(
        f"\nreport: {output / 'report.md'}   figure: {output / 'figure.png'}   records: {output / 'results.jsonl'}   ({minutes:.1f} minutes)"
    )
    return rows


def settings(recipe: dict, mixer: str) -> dict:
    """Everything that decides a mixer's row, as JSON; two runs with equal settings need not be repeated."""
    from .tasks import get_task

    kept = {k: v for k, v in recipe.items() if k != "mixers"}
    prints = {name: get_task(recipe[name]).fingerprint for name in ("task", "transfer")}
    return json.loads(json.dumps({"mixer": mixer, **kept, "fingerprints": prints, "package": __version__}))


def finished(recipe: dict, output: Path, mixer: str) -> dict | None:
    """The row of a mixer that was trained and scored with these settings, or None."""
    try:
        row = json.loads((output / f"runs/{mixer}.json").read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return None
    same = isinstance(row, dict) and row.get("settings") == settings(recipe, mixer)
    return row if same and row.get("status") == "finished" else None


# -- the processes -------------------------------------------------------------------------------------------------------


def _run_all(mixers, recipe, output, workers):
    """Run a worker for each mixer, some at a time, and tell how far they are."""
    import torch

    from .results import read

    cores = _cores()
    workers = min(len(mixers), workers or (1 if torch.cuda.is_available() else cores))
    threads = max(1, cores // workers)
    steps = recipe["training"].get("max_steps", "all")
    print(
        f"training {', '.join(mixers)} on {recipe['task']}: {steps} steps each, {workers} at a time with {threads} thread(s) each"
    )
    waiting, running, told = list(mixers), {}, {}
    try:
        while waiting or running:
            while waiting and len(running) < workers:
                mixer = waiting.pop(0)
                running[mixer] = _start(mixer, recipe, output, threads)
            time.sleep(0.5)
            for mixer, process in list(running.items()):
                log = output / f"runs/{mixer}/log.jsonl"
                entries = [e for e in _quiet_read(read, log) if "loss" in e and e.get("step", 0) % 50 == 0]
                if entries and entries[-1]["step"] > told.get(mixer, 0):
                    told[mixer] = entries[-1]["step"]
                    print(f"{mixer:<16} step {told[mixer]} of {steps}, loss {entries[-1]['loss']:.3f}", flush=True)
                if process.poll() is not None:
                    del running[mixer]
                    how = (
                        "scored" if process.returncode == 0 else f"FAILED: {_last_line(output / f'logs/{mixer}.log')}"
                    )
                    print(f"{mixer:<16} {how}", flush=True)
    finally:
        for process in running.values():
            process.terminate()
        for process in running.values():
            process.wait()


def _cores() -> int:
    """Cores that this process may use: those it is bound to, and no more than a container's share."""
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    try:
        quota, period = Path("/sys/fs/cgroup/cpu.max").read_text().split()
        return max(1, min(cores, round(int(quota) / int(period))))
    except (OSError, ValueError):  # no such file, or "max"
        return cores


def _quiet_read(read, path):
    import contextlib
    import io

    with contextlib.redirect_stderr(io.StringIO()):  # a line that is being written is no news
        return read(path)


def _start(mixer, recipe, output, threads):
    env = {**os.environ, "OMP_NUM_THREADS": str(threads), "MKL_NUM_THREADS": str(threads), "PYTHONUNBUFFERED": "1"}
    root = str(Path(__file__).resolve().parent.parent)
    env["PYTHONPATH"] = os.pathsep.join(filter(None, [root, env.get("PYTHONPATH")]))
    job = json.dumps({"mixer": mixer, "recipe": recipe, "output": str(output)})
    with open(output / f"logs/{mixer}.log", "w", encoding="utf-8") as log:
        return subprocess.Popen([sys.executable, "-c", "from selectivbench_hf.demo import _worker; _worker()", job],
                                env=env, stdout=log, stderr=subprocess.STDOUT, stdin=subprocess.DEVNULL)  # fmt: skip


def _worker():
    """What a worker process does: train or go on, score, and put the row down last."""
    leave_with_parent(every=1, code=143)  # the demo was killed: do not train on for nobody
    job = json.loads(sys.argv[1])
    mixer, recipe, output = job["mixer"], job["recipe"], Path(job["output"])
    try:
        row = train_and_score(mixer, recipe, output)
    except (InputError, RuntimeError, OSError) as error:
        sys.exit(f"{type(error).__name__}: {error}")
    _write_text(output / f"runs/{mixer}.json", json.dumps(row, allow_nan=False) + "\n")


def train_and_score(mixer: str, recipe: dict, output: Path) -> dict:
    """Train one mixer into output/runs/MIXER and score it; returns its row."""
    from .evaluation import evaluate
    from .tasks import get_task
    from .training import train

    folder, mine = output / f"runs/{mixer}", settings(recipe, mixer)
    mark = output / f"runs/{mixer}.settings.json"
    if folder.exists() and _load(mark) != mine:
        shutil.rmtree(folder)  # of other settings
    _write_text(mark, json.dumps(mine) + "\n")
    resume = bool(list(folder.glob("checkpoints/*"))) if folder.exists() else False
    if folder.exists() and not resume:
        shutil.rmtree(folder)
    result = train(
        recipe["task"], model=mixer, output_dir=str(folder), resume=resume, eval_splits=[], **recipe["training"]
    )
    task, transfer = get_task(recipe["task"]), get_task(recipe["transfer"])
    scores = {}
    for split, count in recipe["sequences"].items():
        scores |= evaluate(result.model, task, [split], max_sequences=count)
    scores[f"{recipe['transfer']}/test"] = evaluate(
        result.model, transfer, ["test"], max_sequences=recipe["transfer_sequences"]
    )["test"]
    record = result.record
    return {
        "name": mixer, "status": "finished", "parameters": record["model"]["parameters"], "state_size": record["model"]["state_size"],
        "kernel_backend": record["model"]["kernel_backend"], "steps": record["training"]["steps"], "training_loss": record["training"]["loss"],
        "training_seconds": record["training"]["seconds"], "scores": scores, "device": record["hardware"]["device"],
        "versions": record["versions"], "settings": mine, "run_id": record["run_id"],
    }  # fmt: skip


# -- small things --------------------------------------------------------------------------------------------------------


def _load(path):
    try:
        return json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return None


def _write_text(path: Path, text: str):
    from .checkpointing import write_text

    write_text(path, text)


def _write_rows(path, rows):
    _write_text(path, "".join(json.dumps(row, allow_nan=False) + "\n" for row in rows))


def _last_line(path: Path) -> str:
    lines = path.read_text(encoding="utf-8", errors="replace").strip().splitlines() if path.exists() else []
    return lines[-1][:300] if lines else "it ended without a word"
