"""How fast and in how much memory the data are made, against what NumPy takes for the two simplest things that must happen.

    python benchmarks/generation.py [--level te7] [--num_train 200000] [--repeats 5]
    python benchmarks/generation.py --recall mqar_512_64        # a recall task instead: sampling with questions, answers and filler

The floor: draw 40 M float32 uniforms and gather 40 M values from a 100 KB table (as many as items are drawn). The machine is noisy, so floor and
sampling alternate and the medians are compared; times by themselves say nothing about another machine.
"""

import argparse
import json
import resource
import statistics
import time

import numpy as np


def timed(function):
    start = time.perf_counter()
    function()
    return time.perf_counter() - start


def recall(args):
    """Sampling a recall task's whole train split against the floor for as many steps."""
    import selectivbench_hf as sb
    from selectivbench_hf.layout import _load_split, load_split
    from selectivbench_hf.recall_sampling import _block

    task = sb.get_task(args.recall)
    steps = task.max_steps("train") * task.num_train
    rng, table = np.random.default_rng(0), np.arange(25_000, dtype=np.float32)

    def sample():
        _load_split.cache_clear()
        _block.cache_clear()
        load_split(task, "train")

    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    sample()
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    index = rng.integers(0, table.size, steps, dtype=np.int32)
    samples, floors = [], []
    for _ in range(args.repeats):
        samples.append(timed(sample))
        floors.append(timed(lambda: rng.random(steps, dtype=np.float32)) + timed(lambda: table[index]))
    sample_s, floor_s = statistics.median(samples), statistics.median(floors)
    result = {
        "name": task.name,
        "sequences": task.num_train,
        "steps": steps,
        "ratio_to_floor": sample_s / floor_s,
        "floor_s": floor_s,
        "sampling_s": sample_s,
        "peak_mb_of_process": peak / 1024,
        "peak_mb_above_start": (peak - before) / 1024,
    }
    if args.json:
        print(json.dumps([result], indent=2))
        return
    print(f"{task.name}: {task.num_train:,} sequences of up to {task.max_steps('train')} steps, one process")
    print(
        f"  sampling / floor      {result['ratio_to_floor']:.1f}  ({sample_s:.2f} s against a floor of {floor_s:.2f} s; bar 10 s)"
    )
    print(
        f"  peak memory           {result['peak_mb_of_process']:.0f} MB of the process, {result['peak_mb_above_start']:.0f} MB above its start  (bar 1,000)"
    )


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--level", default="te7")
    parser.add_argument("--num_train", type=int, default=200_000)
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--json", action="store_true")
    parser.add_argument("--recall", metavar="TASK")
    args = parser.parse_args()
    if args.recall:
        return recall(args)

    import scipy.sparse.linalg  # noqa: F401 - not part of what is timed

    import selectivbench_hf as sb
    from selectivbench_hf.layout import _load_split, load_split
    from selectivbench_hf.sampling import block_size, sample_block, string_law

    task = sb.get_task(args.level, num_train=args.num_train)
    build, entropy = timed(lambda: task.grammar), timed(task.grammar.topological_entropy)
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    _load_split.cache_clear()
    law = timed(lambda: string_law(task.grammar, task.max_string_length).tables)
    split = timed(lambda: load_split(task, "train"))
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    _load_split.cache_clear()

    items = args.num_train * task.num_items
    rng, table = np.random.default_rng(0), np.arange(25_000, dtype=np.float32)
    index = rng.integers(0, table.size, items, dtype=np.int32)
    blocks = -(-args.num_train // block_size("train"))

    def floor():
        return timed(lambda: rng.random(items, dtype=np.float32)) + timed(lambda: table[index])

    def sample():
        for block in range(blocks):
            sample_block(task.grammar, task.max_string_length, task.num_items, task.sample_seed, "train", block)

    floors, samples = [], []
    for _ in range(args.repeats):
        floors.append(floor())
        samples.append(timed(sample))
    floor_s, sample_s = statistics.median(floors), statistics.median(samples)
    result = {
        "name": args.level,
        "sequences": args.num_train,
        "items": items,
        "ratio_to_floor": sample_s / floor_s,
        "ratio_range": [min(s / f for s, f in zip(samples, floors)), max(s / f for s, f in zip(samples, floors))],
        "floor_s": floor_s,
        "sampling_s": sample_s,
        "items_per_s": items / sample_s,
        "sequences_per_s": args.num_train / sample_s,
        "peak_mb_of_process": peak / 1024,
        "peak_mb_above_start": (peak - before) / 1024,
        "grammar_s": build,
        "entropy_s": entropy,
        "law_s": law,
        "whole_split_s": split,
    }
    if args.json:
        print(json.dumps([result], indent=2))
        return
    low, high = result["ratio_range"]
    print(f"{args.level}: {args.num_train:,} sequences of {task.num_items} items, one process")
    print(
        f"  sampling / floor      {result['ratio_to_floor']:.1f}  (bar 15, ambition 5; run by run {low:.1f} to {high:.1f})"
    )
    print(
        f"  items a second        {result['items_per_s'] / 1e6:.1f} M  ({sample_s:.2f} s against a floor of {floor_s:.2f} s)"
    )
    print(
        f"  peak memory           {result['peak_mb_of_process']:.0f} MB of the process, {result['peak_mb_above_start']:.0f} MB above its start  (bar 1,500)"
    )
    print(
        f"  whole train split     {split:.2f} s with gaps, in memory; grammar {build:.3f} s, entropy {entropy:.3f} s, law {law:.3f} s"
    )


if __name__ == "__main__":
    main()
