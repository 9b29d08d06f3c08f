"""KDA, Gated DeltaNet-2 and RWKV-7's recurrence in chunks against plain float64 loops: values, all gradients, odd lengths, extreme gates and keys."""

import inspect

import pytest
import torch
from kernels_helper import GATES, STEPS, error, values_and_gradients
from torch.nn import functional as F

from selectivbench_hf.kernels.bindings.kda import log_decay
from selectivbench_hf.kernels.dplr import dplr
from selectivbench_hf.kernels.halving import halve
from selectivbench_hf.kernels.kda import gdn2, kda
from selectivbench_hf.kernels.reference_generalized import dplr_loop, gdn2_loop, kda_loop

OPS = {"kda": (kda, kda_loop), "gdn2": (gdn2, gdn2_loop), "dplr": (dplr, dplr_loop)}


def names(op):
    """Of the arguments that `inputs` makes."""
    listed = list(inspect.signature(OPS[op][1]).parameters)
    return [name for name in listed if name != "scale"]


def inputs(op, steps, gate=-0.5, repeat=1, batch=2, heads=2, keys=5, values=6, seed=0):
    """float64 arguments of an op, ending with an initial state."""
    generator = torch.Generator().manual_seed(seed)

    def random(*more, wide=1):
        return torch.randn(batch, steps, heads * wide, *more, generator=generator, dtype=torch.float64)

    def share(*more, wide=1):
        return torch.rand(batch, steps, heads * wide, *more, generator=generator, dtype=torch.float64)

    state = torch.randn(batch, heads * repeat, keys, values, generator=generator, dtype=torch.float64)
    q, v, g = random(keys), random(values, wide=repeat), gate * share(keys, wide=repeat)
    key = F.normalize(random(keys), dim=-1)
    if op == "kda":
        return [q, key, v, g, share(wide=repeat), state]
    if op == "gdn2":
        return [q, key, v, g, share(keys), share(values), state]
    return [q, F.normalize(random(keys), dim=-1), v, -key, key * share(keys), g, state]


@pytest.mark.parametrize("steps", STEPS)
@pytest.mark.parametrize("op", OPS)
def test_chunks_equal_the_loop(op, steps):
    fast, loop = OPS[op]
    for repeat in (1, 2) if op == "kda" else (1,):
        for state in (True, False):
            arguments = inputs(op, steps, repeat=repeat)
            wanted = values_and_gradients(loop, arguments, torch.float64, state=state)
            for dtype, bound in ((torch.float64, 1e-13), (torch.float32, 1e-5)):
                got = values_and_gradients(fast, arguments, dtype, state=state)
                assert max(map(error, got, wanted)) < bound, (op, steps, repeat, state, dtype)


@pytest.mark.parametrize("chunk", [1, 4, 16, 32, 64])
@pytest.mark.parametrize("op", OPS)
def test_the_chunk_length_does_not_matter(op, chunk):
    fast, loop = OPS[op]
    arguments = inputs(op, 70)
    wanted = values_and_gradients(loop, arguments, torch.float64)
    got = values_and_gradients(lambda *a: fast(*a, chunk), arguments, torch.float64)
    assert max(map(error, got, wanted)) < 1e-13


@pytest.mark.parametrize("gate", GATES)
@pytest.mark.parametrize("op", OPS)
def test_any_gate_is_exact(op, gate):
    """Strong decays need no clamp, and a gate's gradient is right relative to what it could be (it vanishes where all is forgotten)."""
    fast, loop = OPS[op]
    arguments = inputs(op, 100, gate=gate)
    wanted = values_and_gradients(loop, arguments, torch.float64)
    got = values_and_gradients(fast, arguments, torch.float32)
    for index, (ours, theirs) in enumerate(zip(got, wanted, strict=True)):
        assert ours.isfinite().all(), index
        size = theirs.norm().clamp_min(0.1 * wanted[2].norm())
        assert (ours.double() - theirs).norm() / size < 1e-4, (op, gate, index)


@pytest.mark.parametrize("op", OPS)
def test_strong_and_weak_gates_in_one_chunk(op):
    """After one step that forgets all, weak decays still count exactly."""
    fast, loop = OPS[op]
    arguments = inputs(op, 64, gate=-1e-3)
    arguments[names(op).index("g")][:, [0, 5, 40]] = -1e4
    wanted = values_and_gradients(loop, arguments, torch.float64)
    got = values_and_gradients(fast, arguments, torch.float32)
    assert max(map(error, got, wanted)) < 1e-5


@pytest.mark.parametrize("beta", [1.0, 1.9, 2.0])
@pytest.mark.parametrize("op", OPS)
def test_nearly_parallel_keys(op, beta):
    """Erasing up to twice what almost the same key holds, 128 times: substitution keeps the digits that a power series loses."""
    generator = torch.Generator().manual_seed(1)
    fast, loop = OPS[op]
    arguments = inputs(op, 128, gate=-1e-3, keys=16, values=16)
    base = torch.randn(2, 1, 2, 16, generator=generator, dtype=torch.float64)
    noise = torch.randn(2, 128, 2, 16, generator=generator, dtype=torch.float64)
    key = F.normalize(base + 1e-3 * noise, dim=-1)
    full = torch.full_like(key, beta)
    new = {
        "kda": {"k": key, "beta": full[..., 0]},
        "gdn2": {"k": key, "b": full, "w": full.clone()},
        "dplr": {"a": -key, "b": beta * key},
    }[op]
    arguments = [new.get(name, old) for name, old in zip(names(op), arguments, strict=True)]
    wanted = values_and_gradients(loop, arguments, torch.float64)
    got = values_and_gradients(fast, arguments, torch.float32)
    assert all(g.isfinite().all() for g in got)
    assert max(map(error, got, wanted)) < 1e-3


@pytest.mark.parametrize("decayed", [1, 2])
def test_halving_gives_the_products_of_decays(decayed):
    """Weights, readers and writers against quotients of cumulative products, for two readers and three writers."""
    generator = torch.Generator().manual_seed(0)

    def random(*shape):
        return torch.rand(*shape, generator=generator, dtype=torch.float64)

    reads, writes, decay, weights = random(3, 8, 2, 5), random(3, 8, 3, 5), random(3, 8, 5), random(3, 16, 24)
    readers, writers, over = halve(reads, writes, decay, decayed, weights)
    total = decay.cumprod(1)
    before = torch.stack((total, total if decayed == 2 else total / decay), 2)  # up to a step, for each of its readers
    assert torch.allclose(over, total[:, -1])
    assert torch.allclose(readers, reads * before)
    assert torch.allclose(writers, writes * (total[:, -1:] / total).unsqueeze(2))
    wanted = torch.einsum("mird,mjsd,mirjd->mirjs", reads, writes, before.unsqueeze(3) / total[:, None, None])
    seen = torch.ones(8, 8, dtype=torch.float64).tril(-1)[:, None].repeat(1, 2, 1)
    seen[:, 0] += torch.eye(8, dtype=torch.float64)  # the query alone sees what its own step writes
    assert torch.allclose(weights.view(3, 8, 2, 8, 3), wanted * seen.unsqueeze(-1))


@pytest.mark.parametrize("op", OPS)
def test_half_precision_is_only_a_cast(op):
    """bfloat16 inputs are computed with in float32 and the output is cast once."""
    fast = OPS[op][0]
    arguments = [a.bfloat16() for a in inputs(op, 70)[:-1]]
    out, last = fast(*arguments)
    wanted, _ = fast(*(a.float() for a in arguments))
    assert out.dtype == torch.bfloat16 and last.dtype == torch.float32
    assert torch.equal(out, wanted.bfloat16())


@pytest.mark.parametrize("op", OPS)
def test_autocast_does_not_reach_inside(op):
    fast = OPS[op][0]
    arguments = [a.float().requires_grad_() for a in inputs(op, 70)[:-1]]
    wanted, _ = fast(*arguments)
    with torch.autocast("cpu", torch.bfloat16):
        got, _ = fast(*arguments)
    assert torch.equal(got, wanted)
    ours, plain = (torch.autograd.grad(x.cos().sum(), arguments) for x in (got, wanted))
    assert all(map(torch.equal, ours, plain))


def test_kdas_gates():
    """Both formulas of fla's kernel, by hand."""
    g, rate, bias = (torch.randn(*shape, dtype=torch.float64) for shape in ((2, 3, 4, 5), (4,), (20,)))
    total = g + bias.view(4, 5)
    assert torch.allclose(log_decay(g, rate, bias, None), -rate.exp()[:, None] * (1 + total.exp()).log())
    assert torch.allclose(log_decay(g, rate, bias, -3.0), -3 / (1 + (-rate.exp()[:, None] * total).exp()))
    assert torch.allclose(log_decay(g, None, None, -3.0), -3 / (1 + (-g).exp()))
    with pytest.raises(ValueError, match="A_log"):
        log_decay(g, None, bias, None)
