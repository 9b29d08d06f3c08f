"""CPU kernels against causal softmax attention of the same shape, forward and backward.

    python benchmarks/kernels.py [--shapes lite,B16xT512xD64] [--ops gla,kda] [--repeats 7] [--memory] [--json]
    python benchmarks/kernels.py --versus [--ops gla,kda]

Prints time / time of torch's scaled_dot_product_attention (is_causal): the median, over interleaved rounds, of the ratio within a round.
Only ratios within one run mean anything on a shared machine. Where other OpenMP processes share the cores, set OMP_WAIT_POLICY=PASSIVE
or one thread: threads that spin while they wait for each other made many-step kernels 10 to 50 times slower here.

`lite` is what the small demonstration trains: batch 32, 256 steps, 4 heads of 16 (GLA keys 8, gated delta 12 x 24, Mamba-2 keys 128
shared by the heads). --memory adds the peak memory of one pass beyond its inputs, each op in a process of its own, after the timing.
--versus times instead what a user would have without these kernels: the plain recurrences that fla ships and the torch fallbacks of
fla's and transformers' layers, divided by ours.
"""

import argparse
import dataclasses
import importlib
import json
import resource
import statistics
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import torch
from torch.nn import functional as F

SHAPES = {
    "lite": (32, 256, 4, 16),
    "B4xT512xD32": (4, 512, 4, 32),
    "B4xT512xD64": (4, 512, 4, 64),
    "B16xT512xD64": (16, 512, 4, 64),
    "B2xT2048xD64": (2, 2048, 4, 64),
}
BARRED = ("B16xT512xD64", "B2xT2048xD64")


class Sizes:
    """Random inputs of one shape; keys and values may differ from the heads' width. Axes: B T H K V."""

    def __init__(self, shape: str, keys: int | None = None, values: int | None = None):
        self.batch, self.steps, self.heads, width = SHAPES[shape]
        self.keys, self.values = keys or width, values or width

    def random(self, *more, heads=None):
        """(B, T, H, *more), normal."""
        return torch.randn(self.batch, self.steps, heads or self.heads, *more, requires_grad=True)

    def make(self, kind: str) -> torch.Tensor:
        """An argument by the name it has in the ops' docstrings."""
        if kind in ("q", "k", "v"):
            return self.random(self.values if kind == "v" else self.keys)
        if kind in ("unit_q", "unit_k"):
            return F.normalize(self.random(self.keys).detach(), dim=-1).requires_grad_()
        log_decay = (F.logsigmoid(self.random(*(self.keys,) * (kind == "gk"))) / 4).detach()
        return {"g": log_decay, "gk": log_decay, "beta": log_decay.exp()}[kind].requires_grad_()

    def twice(self, kind: str) -> torch.Tensor:
        """Two rows a step."""
        return torch.cat((self.make(kind), self.make(kind)), 1).detach().requires_grad_()


@dataclasses.dataclass(frozen=True)
class Op:
    """function: "module:function" below selectivbench_hf.kernels, or a callable. arguments: names that Sizes.make knows, or a function
    of Sizes. bars: the highest ratio allowed at the two BARRED shapes. lite: keys and values at the shape `lite`."""

    function: str | Callable
    arguments: str | Callable
    bars: tuple = (None, None)
    lite: tuple = (None, None)

    def passes(self, shape: str) -> Callable:
        """One forward and backward pass at that shape, as a function without arguments."""
        sizes = Sizes(shape, *(self.lite if shape == "lite" else ()))
        function, arguments = self.function, self.arguments
        if isinstance(function, str):
            module, _, name = function.partition(":")
            function = getattr(importlib.import_module(f"selectivbench_hf.kernels.{module}"), name)
        inputs = arguments(sizes) if callable(arguments) else tuple(map(sizes.make, arguments.split()))
        leaves = [x for x in inputs if isinstance(x, torch.Tensor) and x.requires_grad]

        def run():
            out = function(*inputs)
            out = out[0] if isinstance(out, tuple) else out
            torch.autograd.grad(out, leaves, torch.ones_like(out))

        return run


def sdpa(q, k, v):
    """Causal attention of (B, T, H, D)."""
    return F.scaled_dot_product_attention(*(x.transpose(1, 2) for x in (q, k, v)), is_causal=True)


def window(q, k, v):
    """Attention to the last 32 steps."""
    from selectivbench_hf.models.attention import window_attention

    return window_attention(q, k, v, 32)


def candidates() -> dict[str, Op]:
    """name -> op: one line each."""
    return {
        "sdpa": Op(sdpa, "q k v"),
        "window of 32": Op(window, "q k v"),
        "forgetting": Op("forgetting:forgetting_attention", "q k v g"),
        "simple_gla": Op("simple_gla:simple_gla", "q k v g", (1.0, 0.5)),
        "mamba2 scan": Op("simple_gla:simple_gla", lambda s: (*(s.random(128, heads=1) for _ in "qk"), s.make("v"), s.make("g"), 1.0), lite=(None, 32)),
        "gla": Op("gla:gla", "q k v gk", (1.8, 0.8), lite=(8, 16)),
        "hgrn": Op("hgrn:hgrn", lambda s: tuple(x.detach().flatten(2).requires_grad_() for x in (s.make("v"), s.make("gk")))),
        "gsa": Op("gsa:gsa", lambda s: (*map(s.make, ("q", "k", "v")), s.make("gk").detach().exp().requires_grad_(), s.make("gk"))),
        "rwkv6": Op("rwkv6:rwkv6", lambda s: (*map(s.make, ("q", "k", "v", "gk")), torch.randn(s.heads, s.keys, requires_grad=True))),
        "delta": Op("gated_delta:gated_delta", lambda s: (*map(s.make, ("unit_q", "unit_k", "v")), None, s.make("beta")), (1.7, 1.1)),
        "gated_delta": Op("gated_delta:gated_delta", "unit_q unit_k v g beta", (1.7, 1.1), lite=(12, 24)),
        "delta_product 2": Op("gated_delta:gated_delta_product", lambda s: (s.make("unit_q"), *map(s.twice, ("unit_k", "v")), s.make("g"), s.twice("beta"), 2), (3.4, 2.2), lite=(12, 24)),
        "comba": Op("comba:comba", "unit_q unit_k v unit_k g beta", lite=(12, 24)),
        "kda": Op("kda:kda", "unit_q unit_k v gk beta", (3.5, 1.8)),
        "rwkv7": Op("dplr:dplr", lambda s: (*map(s.make, ("q", "k", "v")), a := s.make("unit_k"), (-0.5 * a.detach()).requires_grad_(), s.make("gk"))),
    }  # fmt: skip


def interleaved(runs: dict[str, Callable], repeats: int) -> dict[str, list[float]]:
    """Seconds of each run in each round; a first round only warms up."""
    times = {name: [] for name in runs}
    for repeat in range(repeats + 1):
        for name, run in runs.items():
            start = time.perf_counter()
            run()
            if repeat:
                times[name].append(time.perf_counter() - start)
    return times


def against(times: dict[str, list[float]], base: str) -> dict[str, float]:
    """The median over rounds of each time divided by that of `base` in the same round."""
    return {
        name: statistics.median(a / b for a, b in zip(seconds, times[base], strict=True))
        for name, seconds in times.items()
    }


def peak_memory(shape: str, name: str) -> float:
    """MiB that one pass takes beyond what is there before it, measured in a process of its own."""
    command = [sys.executable, __file__, "--shapes", shape, "--ops", name, "--peak-here"]
    return float(subprocess.run(command, check=True, capture_output=True, text=True).stdout)


def peak_here(run: Callable) -> float:
    """MiB that a first pass adds to this process's peak."""
    clear, status = Path("/proc/self/clear_refs"), Path("/proc/self/status")

    def peak():
        if status.exists():
            return next(int(line.split()[1]) for line in status.read_text().splitlines() if line.startswith("VmHWM"))
        return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / (1024 if sys.platform == "darwin" else 1)

    if clear.exists():
        clear.write_text("5")  # the peak starts again from what is used now
    before = peak()
    run()
    return (peak() - before) / 1024


def main(argv=None) -> None:
    """See the top of the file."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument(
        "--shapes", default="lite,B16xT512xD64,B2xT2048xD64", help="comma-separated, of: " + ", ".join(SHAPES)
    )
    parser.add_argument("--ops", default="", help="comma-separated; default: all")
    parser.add_argument("--repeats", type=int, default=7)
    parser.add_argument("--memory", action="store_true", help="add the peak memory of one pass")
    parser.add_argument("--json", action="store_true")
    parser.add_argument("--peak-here", action="store_true", help=argparse.SUPPRESS)
    options = parser.parse_args(argv)
    ops = candidates()
    names = [n for n in options.ops.split(",") if n] or list(ops)
    for given, known in ((options.shapes.split(","), SHAPES), (names, ops)):
        for name in given:
            if name not in known:
                parser.error(f"unknown {name!r}; allowed: {', '.join(known)}")
    if options.peak_here:
        print(peak_here(ops[names[0]].passes(options.shapes)))
        return
    ops = {name: op for name, op in ops.items() if name == "sdpa" or name in names}
    rows = []
    for shape in options.shapes.split(","):
        torch.manual_seed(0)
        times = interleaved({name: op.passes(shape) for name, op in ops.items()}, options.repeats)
        ratios = against(times, "sdpa")
        for name, op in ops.items():
            bar = op.bars[BARRED.index(shape)] if shape in BARRED else None
            row = {
                "name": f"{shape} {name}",
                "ratio": round(ratios[name], 2),
                "ms": round(statistics.median(times[name]) * 1e3, 1),
                "bar": bar,
            }
            if options.memory:
                row["peak_mib"] = round(peak_memory(shape, name), 1)
            rows.append(row)
    if options.json:
        print(json.dumps(rows))
        return
    print(
        f"torch {torch.__version__}, {torch.get_num_threads()} threads, forward + backward, median of {options.repeats}"
    )
    for row in rows:
        bar = "" if row["bar"] is None else f"   bar {row['bar']}" + ("" if row["ratio"] <= row["bar"] else "  MISSED")
        memory = f" {row['peak_mib']:8.1f} MiB" if options.memory else ""
        print(f"{row['name']:28} {row['ratio']:6.2f} x SDPA {row['ms']:9.1f} ms{memory}{bar}")


if __name__ == "__main__":
    main()
