"""CPU kernels against causal softmax attention of the same shape, forward and backward.

    python benchmarks/kernels.py [--shapes lite,B16xT512xD64] [--ops gla,kda] [--repeats 7] [--memory] [--json]
    python benchmarks/kernels.py --versus [--ops gla,kda]

Prints time / time of torch's scaled_dot_product_attention (is_causal): the median, over interleaved rounds, of the ratio within a round.
Only ratios within one run mean anything on a shared machine. Where other OpenMP processes share the cores, set OMP_WAIT_POLICY=PASSIVE
or one thread: threads that spin while they wait for each other made many-step kernels 10 to 50 times slower here.

`lite` is what the small demonstration trains: batch 32, 256 steps, 4 heads of 16 (GLA keys 8, gated delta 12 x 24, Mamba-2 keys 128
shared by the heads). --memory adds the peak memory of one pass beyond its inputs, each op in a process of its own, after the timing.
--versus times instead what a user would have without these kernels: the plain recurrences that fla ships and transformers' torch
fallbacks, divided by ours in the same round, and compares what they compute (fla's plain Comba is another recurrence than its kernels).
"""

import argparse
import dataclasses
import importlib
import inspect
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

    def inputs(self, shape: str) -> tuple:
        """Random arguments at that shape."""
        sizes = Sizes(shape, *(self.lite if shape == "lite" else ()))
        return (
            self.arguments(sizes) if callable(self.arguments) else tuple(map(sizes.make, self.arguments.split()))
        )

    def passes(self, shape: str) -> Callable:
        """One forward and backward pass at that shape, as a function without arguments."""
        return a_pass(self.resolved(), self.inputs(shape))

    def resolved(self) -> Callable:
        """The function itself."""
        if callable(self.function):
            return self.function
        module, _, name = self.function.partition(":")
        return getattr(importlib.import_module(f"selectivbench_hf.kernels.{module}"), name)


def a_pass(function: Callable, inputs: tuple) -> Callable:
    """Forward and backward of the function, as one without arguments that returns the first output."""
    leaves = [x for x in inputs if isinstance(x, torch.Tensor) and x.requires_grad]

    def run():
        out = function(*inputs)
        out = out[0] if isinstance(out, tuple) else out
        torch.autograd.grad(out, leaves, torch.ones_like(out), allow_unused=True)
        return out.detach()

    return run


def sdpa(q, k, v):
    """Causal attention of (B, T, H, D)."""
    return F.scaled_dot_product_attention(*(x.transpose(1, 2) for x in (q, k, v)), is_causal=True)


def window(q, k, v):
    """Attention to the last 32 steps."""
    from selectivbench_hf.models.attention import window_attention

    return window_attention(q, k, v, 32)


def lightnet(q, k, v):
    """LightNet: keys and decays from scores k, then gated linear attention."""
    from selectivbench_hf.kernels.gla import gla
    from selectivbench_hf.kernels.linear import additive_gate

    k, g, _ = additive_gate(k)
    return gla(q, k, v, g)


def mamba(x, dt, A, B, C):
    """Mamba's recurrence."""
    from selectivbench_hf.kernels.scan import selective_scan

    return selective_scan(x * dt, dt, A, B, C)


def mamba_inputs(sizes):
    """x, dt (B, T, 2 H D) as the layer has them with its expansion of 2, A (.., 16), B and C (B, T, 16)."""
    width = 2 * sizes.heads * sizes.values
    x, dt = (sizes.random(width, heads=1).detach().squeeze(2) for _ in "xd")
    A = -torch.arange(1.0, 17).repeat(width, 1)
    B, C = (sizes.random(16, heads=1).detach().squeeze(2) for _ in "BC")
    return tuple(t.requires_grad_() for t in (x, dt.sigmoid() / 10, A, B, C))


def s4d_inputs(sizes):
    """u (B, T, H D), and 32 complex states a channel."""
    width = sizes.heads * sizes.values
    constants = -torch.rand(width, 32) / 20, 3 * torch.rand(width, 32), torch.randn(width, 32, 2)
    return tuple(t.detach().requires_grad_() for t in (sizes.random(width, heads=1).squeeze(2), *constants))


def recurrent(kind, gates):
    """torch's own recurrence of H D units, as an Op."""

    def function(x, *weights):
        state = x.new_zeros(1, x.shape[0], x.shape[2])
        state = (state, state) if kind == "lstm" else state
        return getattr(torch, kind)(x, state, weights, True, 1, 0.0, True, False, True)[0]

    def inputs(sizes):
        width = sizes.heads * sizes.values
        shapes = (gates * width, width), (gates * width, width), (gates * width,), (gates * width,)
        weights = [torch.randn(shape) / width**0.5 for shape in shapes]
        return tuple(t.detach().requires_grad_() for t in (sizes.random(width, heads=1).squeeze(2), *weights))

    return Op(function, inputs)


def candidates() -> dict[str, Op]:
    """name -> op: one line each."""
    return {
        "sdpa": Op(sdpa, "q k v"),
        "window of 32": Op(window, "q k v"),
        "forgetting": Op("forgetting:forgetting_attention", "q k v g"),
        "path": Op("path:path_attention", "q k v unit_k beta"),
        "simple_gla": Op("simple_gla:simple_gla", "q k v g", (1.0, 0.5)),
        "linear": Op("simple_gla:simple_gla", "q k v", (1.0, 0.5)),
        "mamba2 scan": Op("simple_gla:simple_gla", lambda s: (*(s.random(128, heads=1) for _ in "qk"), s.make("v"), s.make("g"), 1.0), lite=(None, 32)),
        "log_linear_mamba2 scan": Op(
            "log_linear:log_linear",
            lambda s: (*(s.random(128, heads=1) for _ in "qk"), s.make("v"), s.make("g"), s.random(15).detach().exp().requires_grad_(), 1.0),
            lite=(None, 32),
        ),
        "mamba": Op(mamba, mamba_inputs, (1.5, 1.5)),
        "s4d": Op("diagonal_ssm:diagonal_ssm", s4d_inputs),
        "gru": recurrent("gru", 3),
        "lstm": recurrent("lstm", 4),
        "gla": Op("gla:gla", "q k v gk", (1.8, 0.8), lite=(8, 16)),
        "lightnet": Op(lightnet, "q k v", lite=(16, 16)),
        "hgrn": Op("hgrn:hgrn", lambda s: tuple(x.detach().flatten(2).requires_grad_() for x in (s.make("v"), s.make("gk")))),
        "gsa": Op("gsa:gsa", lambda s: (*map(s.make, ("q", "k", "v")), s.make("gk").detach().exp().requires_grad_(), s.make("gk"))),
        "rwkv6": Op("rwkv6:rwkv6", lambda s: (*map(s.make, ("q", "k", "v", "gk")), torch.randn(s.heads, s.keys, requires_grad=True))),
        "based": Op("based:based", lambda s: (s.random(16), s.random(16), s.make("v"))),
        "delta": Op("gated_delta:gated_delta", lambda s: (*map(s.make, ("unit_q", "unit_k", "v")), None, s.make("beta")), (1.7, 1.1)),
        "gated_delta": Op("gated_delta:gated_delta", "unit_q unit_k v g beta", (1.7, 1.1), lite=(12, 24)),
        "delta_product 2": Op(
            "gated_delta:gated_delta_product", lambda s: (s.make("unit_q"), *map(s.twice, ("unit_k", "v")), s.make("g"), s.twice("beta"), 2),
            (3.4, 2.2), lite=(12, 24),
        ),
        "mesa": Op("mesa:mesa", lambda s: (*map(s.make, ("unit_q", "unit_k", "v", "g", "beta")), torch.ones(s.heads, s.keys, requires_grad=True))),
        "comba": Op("comba:comba", "unit_q unit_k v unit_k g beta", lite=(12, 24)),
        "kda": Op("kda:kda", "unit_q unit_k v gk beta", (3.5, 1.8)),
        "gdn2": Op("kda:gdn2", lambda s: (*map(s.make, ("unit_q", "unit_k", "v", "gk")), *(s.make(x).detach().sigmoid().requires_grad_() for x in "kv"))),
        "rwkv7": Op("dplr:dplr", lambda s: (*map(s.make, ("q", "k", "v")), a := s.make("unit_k"), (-0.5 * a.detach()).requires_grad_(), s.make("gk"))),
    }  # fmt: skip


def rivals() -> dict[str, dict[str, Callable]]:
    """name of an op -> what there is without it -> that function, with the op's arguments: one line each."""
    from fla.ops.comba.naive import naive_recurrent_comba
    from fla.ops.forgetting_attn.naive import naive_forgetting_attn
    from fla.ops.gated_delta_product.naive import naive_recurrent_gated_delta_product
    from fla.ops.gated_delta_rule.naive import naive_chunk_gated_delta_rule, naive_recurrent_gated_delta_rule
    from fla.ops.gla.naive import naive_recurrent_gla
    from fla.ops.gsa.naive import naive_recurrent_gsa
    from fla.ops.hgrn.naive import naive_recurrent_hgrn
    from fla.ops.kda.naive import naive_chunk_kda, naive_recurrent_kda
    from fla.ops.mesa_net.naive import naive_mesa_net_CG
    from fla.ops.path_attn.naive import naive_path_attn
    from fla.ops.rwkv6.recurrent_naive import naive_recurrent_rwkv6
    from fla.ops.simple_gla.naive import naive_chunk_simple_gla, naive_recurrent_simple_gla
    from transformers.models.kimi_linear.modeling_kimi_linear import chunk_kimi_delta_attention
    from transformers.models.mamba.modeling_mamba import mamba_selective_scan
    from transformers.models.mamba2.modeling_mamba2 import mamba2_chunk_scan
    from transformers.models.qwen3_next.modeling_qwen3_next import torch_chunk_gated_delta_rule

    def turned(*tensors):
        return (x.transpose(1, 2) for x in tensors)

    torch_gdn, torch_kda, torch_mamba, torch_mamba2 = map(
        inspect.unwrap, (torch_chunk_gated_delta_rule, chunk_kimi_delta_attention, mamba_selective_scan, mamba2_chunk_scan)
    )
    recurrence, chunks = "fla's recurrence", "fla's chunks"
    return {
        "simple_gla": {recurrence: naive_recurrent_simple_gla, chunks: lambda q, k, v, g: naive_chunk_simple_gla(q, k, v, g)},
        "mamba2 scan": {"transformers' Mamba-2": lambda q, k, v, g, scale: torch_mamba2(v / -g[..., None], -g, -torch.ones(g.shape[2]), k, q, 256)},
        "gla": {recurrence: naive_recurrent_gla},
        "hgrn": {recurrence: naive_recurrent_hgrn},
        "gsa": {recurrence: naive_recurrent_gsa},
        "rwkv6": {recurrence: lambda q, k, v, g, u: naive_recurrent_rwkv6(*turned(q, k, v, g), u)[0].transpose(1, 2)},
        "gated_delta": {
            recurrence: lambda q, k, v, g, beta: naive_recurrent_gated_delta_rule(q, k, v, beta, g),
            chunks: naive_chunk_gated_delta_rule,
            "transformers' Qwen3-Next": torch_gdn,
        },
        "delta_product 2": {recurrence: lambda *a: naive_recurrent_gated_delta_product(*a[:5], a[0].shape[-1] ** -0.5, num_householder=a[5])},
        "kda": {recurrence: naive_recurrent_kda, chunks: naive_chunk_kda, "transformers' Kimi Linear": torch_kda},
        "comba": {recurrence: lambda q, k, v, p, g, beta: naive_recurrent_comba(q, k, v, p, beta, g)},
        "mesa": {"fla's conjugate gradients": lambda q, k, v, g, beta, ridge: naive_mesa_net_CG(q, k, v, g, ridge, beta, 64)[0]},
        "mamba": {"transformers' Mamba": lambda u, dt, A, B, C: torch_mamba(*turned(u, dt), A, *turned(B, C)).transpose(1, 2)},
        "forgetting": {"fla's plain form": naive_forgetting_attn},
        "path": {"fla's plain form": lambda *a: naive_path_attn(*a[:5], a[5] if a[5:] else a[4].detach() * 0, a[0].shape[-1] ** -0.5)},
    }  # fmt: skip


def versus(names: list[str], repeats: int, shape: str = "B4xT512xD32") -> list[dict]:
    """Rows: how many times slower than ours, and how far from ours in the 2-norm, what a user would have otherwise is."""
    ops, rows = candidates(), []
    for name, others in rivals().items():
        if name not in names or name not in ops:
            continue
        torch.manual_seed(0)
        inputs = ops[name].inputs(shape)
        runs = {"ours": a_pass(ops[name].resolved(), inputs)}
        runs |= {other: a_pass(function, inputs) for other, function in others.items()}
        wanted = runs["ours"]()
        difference = {other: ((run() - wanted).norm() / wanted.norm()).item() for other, run in runs.items()}
        times = interleaved(runs, repeats)
        ratios = against(times, "ours")
        rows += [
            {
                "name": f"{shape} {name}: {other}",
                "ratio": round(ratios[other], 2),
                "ms": round(statistics.median(times[other]) * 1e3, 1),
                "difference": difference[other],
            }
            for other in others
        ]
    return rows


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
    parser.add_argument(
        "--versus", action="store_true", help="what a user would have otherwise, against ours (B4xT512xD32)"
    )
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
    if options.versus:
        rows = versus(names, options.repeats)
        if options.json:
            print(json.dumps(rows))
            return
        print(f"torch {torch.__version__}, {torch.get_num_threads()} threads, forward + backward, times ours")
        for row in rows:
            print(f"{row['name']:52} {row['ratio']:7.2f} x {row['ms']:9.1f} ms   difference {row['difference']:.0e}")
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
