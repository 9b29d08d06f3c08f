"""Forgetting and PaTH attention against their loops: values and all gradients at any length, extreme gates, half precision. Axes: B T H K V."""

import pytest
import torch
from kernels_helper import GATES, STEPS, error, values_and_gradients
from torch.nn import functional as F

from selectivbench_hf.kernels.forgetting import forgetting_attention
from selectivbench_hf.kernels.path import path_attention
from selectivbench_hf.kernels.reference_softmax import forgetting_attention_loop, path_attention_loop


def forgetting_inputs(steps, earlier=0, repeat=2, gate=None, keys=8, values=6, seed=0):
    """q, k, v, g for 2 sequences and 2 key heads; `earlier` steps without queries come first."""
    generator = torch.Generator().manual_seed(seed)

    def random(length, heads, *channels):
        return torch.randn(2, length, heads, *channels, generator=generator, dtype=torch.float64)

    total = earlier + steps
    gates = F.logsigmoid(random(total, 2 * repeat))
    return [
        random(steps, 2 * repeat, keys),
        random(total, 2, keys),
        random(total, 2, values),
        gates if gate is None else torch.full_like(gates, gate),
    ]


def path_inputs(steps, earlier=0, repeat=2, gate=None, keys=8, values=6, seed=0):
    """q, k, v, w, beta, g likewise."""
    q, k, v, g = forgetting_inputs(steps, earlier, repeat, gate, keys, values, seed)
    generator = torch.Generator().manual_seed(seed + 1)
    w = torch.randn(2, steps, 2, keys, generator=generator, dtype=torch.float64)
    beta = 2 * torch.rand(2, steps, 2, generator=generator, dtype=torch.float64)
    return [q, k, v, F.normalize(w, dim=-1), beta, g]


def path(*arguments, **kwargs):
    """The output alone."""
    return path_attention(*arguments, **kwargs)[0]


def ungated_path(q, k, v, w, beta, scale=None, **kwargs):
    """PaTH attention without forget gates."""
    return path(q, k, v, w, beta, None, scale, **kwargs)


OPS = {
    "forgetting": (forgetting_attention, forgetting_attention_loop, forgetting_inputs),
    "path": (path, lambda *a: path_attention_loop(*a)[0], path_inputs),
    "ungated path": (
        ungated_path,
        lambda *a: path_attention_loop(*a[:5], None, *a[5:])[0],
        lambda *a, **kwargs: path_inputs(*a, **kwargs)[:5],
    ),
}
GATED = ["forgetting", "path"]


def compared(function, arguments, dtype, **kwargs):
    """The output and the gradients of all arguments."""

    def stateless(*leaves):
        out = function(*leaves, **kwargs)
        return out, out.new_zeros(0)

    got = values_and_gradients(stateless, [*arguments, torch.zeros(0)], dtype, state=False)
    return [got[0], *got[2:]]


@pytest.mark.parametrize("steps", STEPS)
@pytest.mark.parametrize("op", OPS)
def test_values_and_gradients(op, steps):
    fast, loop, inputs = OPS[op]
    arguments = inputs(steps, repeat=1 + steps % 2)
    wanted = compared(loop, arguments, torch.float64)
    assert max(map(error, compared(fast, arguments, torch.float64), wanted)) < 1e-12
    assert max(map(error, compared(fast, arguments, torch.float32), wanted)) < 1e-5


@pytest.mark.parametrize(("earlier", "steps"), [(1, 1), (100, 1), (5, 130), (64, 64), (63, 66)])
@pytest.mark.parametrize("op", OPS)
def test_queries_after_earlier_steps(op, earlier, steps):
    fast, loop, inputs = OPS[op]
    arguments = inputs(steps, earlier)
    wanted = compared(loop, arguments, torch.float64)
    assert max(map(error, compared(fast, arguments, torch.float64), wanted)) < 1e-12


@pytest.mark.parametrize("block", [1, 16, 32, 256])
@pytest.mark.parametrize("op", OPS)
def test_the_block_does_not_matter(op, block):
    fast, loop, inputs = OPS[op]
    arguments = inputs(70, 3)
    wanted = compared(loop, arguments, torch.float64)
    assert max(map(error, compared(fast, arguments, torch.float64, block=block), wanted)) < 1e-13


@pytest.mark.parametrize("gate", GATES)
@pytest.mark.parametrize("op", GATED)
def test_any_gate_is_exact(op, gate):
    fast, loop, inputs = OPS[op]
    arguments = inputs(100, gate=gate)
    wanted = compared(loop, arguments, torch.float64)
    for index, (ours, theirs) in enumerate(zip(compared(fast, arguments, torch.float32), wanted, strict=True)):
        assert ours.isfinite().all(), index
        size = theirs.norm().clamp_min(0.1 * wanted[3].norm())
        assert (ours.double() - theirs).norm() / size < 1e-4, (gate, index)


@pytest.mark.parametrize("op", GATED)
def test_strong_and_weak_gates_in_one_block(op):
    """After a step that forgets all, weak gates still count exactly."""
    fast, loop, inputs = OPS[op]
    arguments = inputs(100, gate=-1e-3)
    arguments[-1][:, [0, 5, 40, 63, 64, 90]] = -1e4
    wanted = compared(loop, arguments, torch.float64)
    assert max(map(error, compared(fast, arguments, torch.float32), wanted)) < 1e-5


@pytest.mark.parametrize("op", OPS)
def test_half_precision_is_only_a_cast(op):
    fast, _, inputs = OPS[op]
    arguments = [a.bfloat16() for a in inputs(70)]
    out = fast(*arguments)
    assert out.dtype == torch.bfloat16
    assert torch.equal(out, fast(*(a.float() for a in arguments)).bfloat16())


@pytest.mark.parametrize("op", OPS)
def test_autocast_does_not_reach_inside(op):
    fast, _, inputs = OPS[op]
    arguments = [a.float() for a in inputs(70)]
    wanted = fast(*arguments)
    with torch.autocast("cpu", torch.bfloat16):
        assert torch.equal(fast(*arguments), wanted)


@pytest.mark.parametrize("steps", [15, 16, 17, 49])
def test_path_attention_in_stretches(steps, monkeypatch):
    """The backward pass computes the keys again in stretches of blocks, the last of them shorter."""
    from selectivbench_hf.kernels import path as module

    monkeypatch.setattr(module, "SHORTEST_STRETCH", 4)
    arguments = path_inputs(steps, 3)
    wanted = compared(OPS["path"][1], arguments, torch.float64)
    assert max(map(error, compared(path, arguments, torch.float64, block=1), wanted)) < 1e-12


@pytest.mark.parametrize("beta", [1.0, 1.9, 2.0])
def test_nearly_parallel_factors(beta):
    generator = torch.Generator().manual_seed(1)
    arguments = path_inputs(200, keys=16, values=16)
    base, noise = (torch.randn(2, n, 2, 16, generator=generator, dtype=torch.float64) for n in (1, 200))
    arguments[3] = F.normalize(base + 1e-3 * noise, dim=-1)
    arguments[4] = torch.full_like(arguments[4], beta)
    _, loop, _ = OPS["path"]
    wanted = compared(loop, arguments, torch.float64)
    got = compared(path, arguments, torch.float32, block=64)
    assert all(g.isfinite().all() for g in got)
    assert max(map(error, got, wanted)) < 1e-3


@pytest.mark.parametrize("cuts", [(70, 30), (1, 99), (64, 1, 35)])
def test_pieces_of_path_attention(cuts):
    """The keys that one call returns are the earlier keys of the next."""
    q, k, v, w, beta, g = path_inputs(100)
    wanted, last = path_attention_loop(q, k, v, w, beta, g)
    keys, out, start = k[:, :0], [], 0
    for count in cuts:
        new, stop = slice(start, start + count), start + count
        keys = torch.cat((keys, k[:, new]), 1)
        piece, keys = path_attention(q[:, new], keys, v[:, :stop], w[:, new], beta[:, new], g[:, :stop])
        out.append(piece)
        start = stop
    assert error(torch.cat(out, 1), wanted) < 1e-13 and error(keys, last) < 1e-13


@pytest.mark.parametrize(
    ("name", "argument"),
    [("forgetting_attn", "window_size"), ("forgetting_attn", "cu_seqlens"), ("path_attn", "cu_seqlens")],
)
def test_what_is_not_implemented_is_named(name, argument):
    pytest.importorskip("fla")
    import importlib

    from selectivbench_hf import kernels

    kernels.enable()
    function = getattr(importlib.import_module(f"fla.ops.{name}"), f"parallel_{name}")
    inputs = forgetting_inputs if name == "forgetting_attn" else path_inputs
    with pytest.raises(NotImplementedError, match=argument):
        function(*(x.float() for x in inputs(5)), **{argument: torch.tensor(3)})


@pytest.mark.parametrize("op", OPS)
def test_memory_grows_with_the_length(op):
    """What the backward pass keeps is linear in T: the scores are computed again."""
    fast, _, inputs = OPS[op]

    def kept(steps):
        sizes = []
        leaves = [x.requires_grad_() for x in inputs(steps, keys=4, values=4)]
        with torch.autograd.graph.saved_tensors_hooks(lambda x: sizes.append(x.numel()) or x, lambda x: x):
            fast(*leaves)
        return sum(sizes)

    assert kept(1024) < 4.5 * kept(256)
