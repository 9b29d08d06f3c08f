"""`selectivbench sealed`: the sealed test of a file of weights, and how to get it."""

from __future__ import annotations

import json
import time

from ... import task_flags


def flags(parser):
    parser.add_argument(
        "file", metavar="FILE", help="the file that seals the test: model.safetensors, or whatever holds your model"
    )
    parser.add_argument("--task", required=True, help="task name, or a task's JSON file")
    parser.add_argument("--json", action="store_true", help="print a JSON array of objects, each with `name`")
    task_flags.add(parser)


def run(arguments) -> int:
    from ..sealed import lines, overlap, sealed_seed, sealed_task

    task = task_flags.task(arguments.task, **task_flags.keywords(arguments))
    seed = sealed_seed(arguments.file)
    sealed = sealed_task(task, seed)
    began = time.perf_counter()
    meet = overlap(task, sealed)
    how = lines(task, sealed)
    row = {
        "name": task.name,
        "file": arguments.file,
        "sealed_seed": seed,
        "sample_seed": str(sealed.sample_seed),
        "fingerprint": sealed.fingerprint,
        "splits": {split: sealed.splits[split] for split in sealed.test_splits},
        "in_published": meet,
        **how,
    }
    if arguments.json:
        print(json.dumps([row], indent=2))
        return 0
    print(f"{task.name}, sealed by {arguments.file}")
    print(f"  seed (SHA-256 of the file)  {seed}")
    print("  test splits                 " + ", ".join(f"{split} {n:,}" for split, n in row["splits"].items()))
    shared = ", ".join(f"{count:,} in {split}" for split, count in meet.items())
    print(
        f"  sequences published too     {shared} (of {row['splits']['test']:,}; counted in {time.perf_counter() - began:.1f} s)"
    )
    print("\nthe same data in Python (import selectivbench_hf as sb):")
    for line in how.values():
        print(f"  {line}")
    return 0
