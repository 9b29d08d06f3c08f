"""The chunked recurrences against plain float64 loops: values, every gradient, odd lengths, states, extreme gates and keys."""

import json
from pathlib import Path

import pytest
import torch
from kernels_helper import GATES, STEPS, error, values_and_gradients
from torch.nn import functional as F

from selectivbench_hf.kernels.gated_delta import gated_delta, unit_lower_inverse
from selectivbench_hf.kernels.gla import gla
from selectivbench_hf.kernels.reference import gated_delta_loop, gla_loop, simple_gla_loop
from selectivbench_hf.kernels.simple_gla import simple_gla

OPS = {
    "simple_gla": (simple_gla, simple_gla_loop),
    "gla": (gla, gla_loop),
    "gated_delta": (gated_delta, gated_delta_loop),
}


def inputs(op, steps, gate=-0.5, repeat=1, batch=2, heads=2, keys=5, values=6, seed=0):
    """float64 arguments of an op, ending with an initial state."""
    generator = torch.Generator().manual_seed(seed)

    def random(*shape):
        return torch.randn(*shape, generator=generator, dtype=torch.float64)

    shape = (batch, steps, heads)
    wide = (batch, steps, heads * repeat)
    q, k, v = random(*shape, keys), F.normalize(random(*shape, keys), dim=-1), random(*wide, values)
    g = gate * torch.rand(*((*shape, keys) if op == "gla" else wide), generator=generator, dtype=torch.float64)
    arguments = [q, k, v, g]
    if op == "gated_delta":
        arguments.append(torch.rand(wide, generator=generator, dtype=torch.float64))
    return [*arguments, random(batch, heads * repeat, keys, values)]


@pytest.mark.parametrize("steps", STEPS)
@pytest.mark.parametrize("op", OPS)
def test_chunks_equal_the_loop(op, steps):
    fast, loop = OPS[op]
    for repeat in (1, 2) if op != "gla" else (1,):
        for state in (True, False):
            arguments = inputs(op, steps, repeat=repeat)
            wanted = values_and_gradients(loop, arguments, torch.float64, state=state)
            for dtype, bound in ((torch.float64, 1e-13), (torch.float32, 1e-5)):
                got = values_and_gradients(fast, arguments, dtype, state=state)
                assert max(map(error, got, wanted)) < bound, (op, steps, repeat, state, dtype)


@pytest.mark.parametrize("chunk", [1, 4, 16, 32, 64])
@pytest.mark.parametrize("op", OPS)
def test_the_chunk_length_does_not_matter(op, chunk):
    arguments = inputs(op, 70)
    fast = OPS[op][0]
    wanted = values_and_gradients(OPS[op][1], arguments, torch.float64)
    got = values_and_gradients(lambda *a: fast(*a[:-2], a[-2], a[-1], chunk), arguments, torch.float64)
    assert max(map(error, got, wanted)) < 1e-13


@pytest.mark.parametrize("gate", GATES)
@pytest.mark.parametrize("op", OPS)
def test_any_gate_is_exact(op, gate):
    """Strong decays need no clamp, and a gate's gradient is right relative to what it could be (it vanishes where all is forgotten)."""
    arguments = inputs(op, 100, gate=gate)
    wanted = values_and_gradients(OPS[op][1], arguments, torch.float64)
    got = values_and_gradients(OPS[op][0], arguments, torch.float32)
    for index, (ours, theirs) in enumerate(zip(got, wanted, strict=True)):
        assert ours.isfinite().all(), index
        size = theirs.norm().clamp_min(0.1 * wanted[2].norm())
        assert (ours.double() - theirs).norm() / size < 1e-4, (op, gate, index)


@pytest.mark.parametrize("op", OPS)
def test_strong_and_weak_gates_in_one_chunk(op):
    """After one step that forgets all, weak decays still count exactly: sums of decays must not lose them."""
    arguments = inputs(op, 64, gate=-1e-3)
    arguments[3][:, [0, 5, 40]] = -1e4
    wanted = values_and_gradients(OPS[op][1], arguments, torch.float64)
    got = values_and_gradients(OPS[op][0], arguments, torch.float32)
    assert max(map(error, got, wanted)) < 1e-5


@pytest.mark.parametrize("beta", [1.0, 1.9, 2.0])
def test_nearly_parallel_keys(beta):
    generator = torch.Generator().manual_seed(1)
    arguments = inputs("gated_delta", 128, gate=-1e-3, keys=16, values=16)
    base = torch.randn(2, 1, 2, 16, generator=generator, dtype=torch.float64)
    noise = torch.randn(2, 128, 2, 16, generator=generator, dtype=torch.float64)
    arguments[1] = F.normalize(base + 1e-3 * noise, dim=-1)
    arguments[4] = torch.full_like(arguments[4], beta)
    wanted = values_and_gradients(gated_delta_loop, arguments, torch.float64)
    got = values_and_gradients(gated_delta, arguments, torch.float32)
    assert all(g.isfinite().all() for g in got)
    assert max(map(error, got, wanted)) < 1e-3


def test_inverse_by_halving():
    strict = torch.randn(3, 32, 32, dtype=torch.float64).tril(-1)
    kept, identity = strict.clone(), torch.eye(32, dtype=torch.float64)
    for size in (1, 2, 4, 32):
        unit_lower_inverse(strict[:, :size, :size].contiguous())
    assert torch.equal(strict, kept)
    assert torch.allclose(unit_lower_inverse(strict) @ (identity + strict), identity.expand(3, -1, -1), atol=1e-9)


@pytest.mark.parametrize("op", OPS)
def test_half_precision_is_only_a_cast(op):
    """bfloat16 inputs are computed with in float32 and the output is cast once."""
    arguments = [a.bfloat16() for a in inputs(op, 70)[:-1]]
    out, last = OPS[op][0](*arguments)
    wanted, _ = OPS[op][0](*(a.float() for a in arguments))
    assert out.dtype == torch.bfloat16 and last.dtype == torch.float32
    assert torch.equal(out, wanted.bfloat16())


@pytest.mark.parametrize("op", OPS)
def test_autocast_does_not_reach_inside(op):
    arguments = [a.float() for a in inputs(op, 70)[:-1]]
    wanted, _ = OPS[op][0](*arguments)
    with torch.autocast("cpu", torch.bfloat16):
        got, _ = OPS[op][0](*arguments)
    assert torch.equal(got, wanted)


@pytest.mark.slow
def test_the_benchmark_prints_ratios(python):
    script = Path(__file__).parent.parent / "benchmarks" / "kernels.py"
    done = python(script, "--shapes", "lite", "--repeats", "1", "--json", timeout=300)
    rows = json.loads(done.stdout)
    assert {row["name"] for row in rows} >= {"lite sdpa", "lite gla", "lite gated_delta", "lite simple_gla"}
    assert all(row["ratio"] > 0 for row in rows)
    done = python(script, "--shapes", "lite", "--ops", "gla", "--repeats", "1", "--memory", "--json", timeout=300)
    assert [row["name"] for row in json.loads(done.stdout)] == ["lite sdpa", "lite gla"]
    assert all(row["peak_mib"] > 1 for row in json.loads(done.stdout))
    done = python(script, "--versus", "--ops", "gla,gated_delta", "--repeats", "1", "--json", timeout=300)
    rows = json.loads(done.stdout)
    assert len(rows) == 4
    assert all(row["ratio"] > 1 and row["difference"] < 1e-5 for row in rows)
