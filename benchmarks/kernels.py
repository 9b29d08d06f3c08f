"""CPU kernels against causal softmax attention of the same shape, forward and backward.

    python benchmarks/kernels.py [--shapes lite,B16xT512xD64] [--repeats 7] [--json]

Prints time / time of torch's scaled_dot_product_attention (is_causal), medians of interleaved repeats: only ratios within one run mean
anything on a shared machine. Where other OpenMP processes share the cores, set OMP_WAIT_POLICY=PASSIVE or one thread: threads that
spin while they wait for each other made many-step kernels 10 to 50 times slower here.

`lite` is what the small demonstration trains: batch 32, 256 steps, 4 heads of 16 (GLA keys 8, gated delta 12 x 24, Mamba-2 keys 128
shared by the heads).
"""

import argparse
import json
import statistics
import time

import torch
from torch.nn import functional as F

SHAPES = {
    "lite": (32, 256, 4, 16),
    "B4xT512xD64": (4, 512, 4, 64),
    "B16xT512xD64": (16, 512, 4, 64),
    "B2xT2048xD64": (2, 2048, 4, 64),
}
BARS = {
    "B16xT512xD64": {"simple_gla": 1.0, "gla": 1.8, "gated_delta": 1.7},
    "B2xT2048xD64": {"simple_gla": 0.5, "gla": 0.8, "gated_delta": 1.1},
}


def candidates(shape: str, threads: int | None = None) -> dict:
    """name -> a function that runs one forward and backward pass."""
    from selectivbench_hf.kernels.gated_delta import gated_delta
    from selectivbench_hf.kernels.gla import gla
    from selectivbench_hf.kernels.simple_gla import simple_gla

    batch, steps, heads, width = SHAPES[shape]
    lite = shape == "lite"

    def random(*size):
        return torch.randn(batch, steps, heads, *size, requires_grad=True)

    def gates(*size):
        return (F.logsigmoid(torch.randn(batch, steps, heads, *size)) / 4).requires_grad_()

    def unit(x):
        return F.normalize(x.detach(), dim=-1).requires_grad_()

    q, k, v = random(width), random(width), random(width)
    gk, gv = (8, 16) if lite else (width, width)
    dk, dv = (12, 24) if lite else (width, width)
    runs = {
        "sdpa": (
            lambda q, k, v: F.scaled_dot_product_attention(*(x.transpose(1, 2) for x in (q, k, v)), is_causal=True),
            (q, k, v),
        ),
        "simple_gla": (lambda *a: simple_gla(*a)[0], (q, k, v, gates())),
        "gla": (lambda *a: gla(*a)[0], (random(gk), random(gk), random(gv), gates(gk))),
        "gated_delta": (
            lambda *a: gated_delta(*a)[0],
            (unit(random(dk)), unit(random(dk)), random(dv), gates(), gates().detach().exp().requires_grad_()),
        ),
    }
    if lite:
        shared = [torch.randn(batch, steps, 1, 128, requires_grad=True) for _ in range(2)]
        runs["mamba2 scan"] = (lambda *a: simple_gla(*a, scale=1.0)[0], (*shared, random(32), gates()))

    def passes(function, inputs):
        def run():
            out = function(*inputs)
            torch.autograd.grad(out, inputs, torch.ones_like(out))

        return run

    return {name: passes(*run) for name, run in runs.items()}


def main(argv=None) -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument(
        "--shapes", default="lite,B16xT512xD64,B2xT2048xD64", help="comma-separated, of: " + ", ".join(SHAPES)
    )
    parser.add_argument("--repeats", type=int, default=7)
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args(argv)
    rows = []
    for shape in options.shapes.split(","):
        if shape not in SHAPES:
            parser.error(f"unknown shape {shape!r}; allowed: {', '.join(SHAPES)}")
        torch.manual_seed(0)
        runs = candidates(shape)
        times = {name: [] for name in runs}
        for repeat in range(options.repeats + 1):
            for name, run in runs.items():
                start = time.perf_counter()
                run()
                if repeat:  # the first round only warms up
                    times[name].append(time.perf_counter() - start)
        sdpa = statistics.median(times["sdpa"])
        for name, seconds in times.items():
            middle = statistics.median(seconds)
            bar = BARS.get(shape, {}).get(name)
            rows.append(
                {"name": f"{shape} {name}", "ratio": round(middle / sdpa, 2), "ms": round(middle * 1e3, 1), "bar": bar}
            )
    if options.json:
        print(json.dumps(rows))
        return
    print(
        f"torch {torch.__version__}, {torch.get_num_threads()} threads, forward + backward, median of {options.repeats}"
    )
    for row in rows:
        bar = "" if row["bar"] is None else f"   bar {row['bar']}" + ("" if row["ratio"] <= row["bar"] else "  MISSED")
        print(f"{row['name']:28} {row['ratio']:6.2f} x SDPA {row['ms']:9.1f} ms{bar}")


if __name__ == "__main__":
    main()
