"""HGRN, gated slot attention and RWKV-6 against plain float64 loops: values, every gradient, odd lengths, states, extreme gates."""

import pytest
import torch
from kernels_helper import GATES, STEPS, error

from selectivbench_hf.kernels.gsa import gsa
from selectivbench_hf.kernels.hgrn import hgrn
from selectivbench_hf.kernels.reference_slots import gsa_loop, hgrn_loop, rwkv6_loop
from selectivbench_hf.kernels.rwkv6 import rwkv6

# op -> its fast form, its loop (arguments..., states...), and the position of the gates among the arguments
OPS = {
    "hgrn": (hgrn, hgrn_loop, 1),
    "gsa": (lambda *a, **k: gsa(*a[:5], 0.7, *a[5:], **k), lambda *a: gsa_loop(*a, scale=0.7), 4),
    "rwkv6": (lambda *a, **k: rwkv6(*a[:5], 0.7, *a[5:], **k), lambda *a: rwkv6_loop(*a, scale=0.7), 3),
}


def inputs(op, steps, gate=-0.5, batch=2, heads=2, keys=5, values=6, slots=4, seed=0):
    """float64 arguments of an op, and its initial states."""
    generator = torch.Generator().manual_seed(seed)

    def random(*shape):
        return torch.randn(*shape, generator=generator, dtype=torch.float64)

    def gates(*shape):
        return gate * torch.rand(*shape, generator=generator, dtype=torch.float64)

    if op == "hgrn":
        return [random(batch, steps, values), gates(batch, steps, values)], [random(batch, values)]
    shape = (batch, steps, heads)
    q, k, v = random(*shape, keys), random(*shape, keys), random(*shape, values)
    if op == "gsa":
        states = [random(batch, heads, keys, slots), random(batch, heads, slots, values)]
        return [q, k, v, random(*shape, slots), gates(*shape, slots)], states
    assert op == "rwkv6"
    return [q, k, v, gates(*shape, keys), random(heads, keys)], [random(batch, heads, keys, values)]


def values_and_gradients(function, arguments, states, dtype, **kwargs):
    """Outputs, last states and gradients of all arguments and initial states (if any are given), for a fixed weighting of them."""
    leaves = [a.to(dtype).requires_grad_() for a in [*arguments, *states]]
    out, last = function(*leaves[: len(arguments)], *_packed(leaves[len(arguments) :]), **kwargs)
    results = [out, *(last if isinstance(last, tuple) else [last])]
    total = sum(
        (x * torch.linspace(0, 7 - n, x.numel(), dtype=dtype).view_as(x).cos()).sum() for n, x in enumerate(results)
    )
    return [*results, *torch.autograd.grad(total, leaves)]


def _packed(states):
    """One state as it is, two as a tuple, none as no argument."""
    return [tuple(states)] if len(states) > 1 else states


@pytest.mark.parametrize("steps", STEPS)
@pytest.mark.parametrize("op", OPS)
def test_fast_forms_equal_the_loop(op, steps):
    fast, loop, _ = OPS[op]
    arguments, states = inputs(op, steps)
    for start in (states, []):
        wanted = values_and_gradients(loop, arguments, start, torch.float64)
        for dtype, bound in ((torch.float64, 1e-13), (torch.float32, 1e-5)):
            got = values_and_gradients(fast, arguments, start, dtype)
            assert max(map(error, got, wanted)) < bound, (bool(start), dtype)


@pytest.mark.parametrize("chunk", [1, 4, 16, 32, 64])
@pytest.mark.parametrize("op", ["gsa", "rwkv6"])
def test_the_chunk_length_does_not_matter(op, chunk):
    fast, loop, _ = OPS[op]
    arguments, states = inputs(op, 70)
    wanted = values_and_gradients(loop, arguments, states, torch.float64)
    got = values_and_gradients(fast, arguments, states, torch.float64, chunk=chunk)
    assert max(map(error, got, wanted)) < 1e-13


@pytest.mark.parametrize("gate", GATES)
@pytest.mark.parametrize("op", OPS)
def test_any_gate_is_exact(op, gate):
    """Strong decays need no clamp; a gate's gradient is measured against the inputs' where it vanishes because all is forgotten."""
    fast, loop, _ = OPS[op]
    arguments, states = inputs(op, 100, gate=gate)
    wanted = values_and_gradients(loop, arguments, states, torch.float64)
    got = values_and_gradients(fast, arguments, states, torch.float32)
    assert all(g.isfinite().all() for g in got)
    inputs_gradient = wanted[1 + len(states)].norm()
    for index, (ours, theirs) in enumerate(zip(got, wanted, strict=True)):
        assert (ours.double() - theirs).norm() / theirs.norm().clamp_min(0.1 * inputs_gradient) < 1e-4, index


@pytest.mark.parametrize("op", OPS)
def test_strong_and_weak_gates_together(op):
    """After one step that forgets all, weak decays still count exactly."""
    fast, loop, gates = OPS[op]
    arguments, states = inputs(op, 64, gate=-1e-3)
    arguments[gates][:, [0, 5, 40]] = -1e4
    wanted = values_and_gradients(loop, arguments, states, torch.float64)
    got = values_and_gradients(fast, arguments, states, torch.float32)
    assert max(map(error, got, wanted)) < 1e-5


@pytest.mark.parametrize("op", OPS)
def test_half_precision_is_only_a_cast(op):
    """bfloat16 inputs are computed with in float32 and the output is cast once; the states stay float32."""
    arguments = [a.bfloat16() for a in inputs(op, 70)[0]]
    out, last = OPS[op][0](*arguments)
    wanted, wanted_last = OPS[op][0](*(a.float() for a in arguments))
    assert out.dtype == torch.bfloat16 and torch.equal(out, wanted.bfloat16())
    for ours, theirs in zip(_as_tuple(last), _as_tuple(wanted_last), strict=True):
        assert ours.dtype == torch.float32 and torch.equal(ours, theirs)


@pytest.mark.parametrize("op", OPS)
def test_autocast_does_not_reach_inside(op):
    arguments = [a.float().requires_grad_() for a in inputs(op, 70)[0]]
    wanted = OPS[op][0](*arguments)[0]
    with torch.autocast("cpu", torch.bfloat16):
        got = OPS[op][0](*arguments)[0]
    assert torch.equal(got, wanted)
    ours, theirs = (torch.autograd.grad(y.sin().sum(), arguments) for y in (got, wanted))
    assert all(torch.equal(a, b) for a, b in zip(ours, theirs, strict=True))


def _as_tuple(x):
    return x if isinstance(x, tuple) else (x,)


@pytest.mark.parametrize("repeat", [1, 2])
def test_slots_normalised_by_their_writes(repeat):
    """chunk_gsa without gates, and with fewer heads of keys than of queries: fla's plain recurrence."""
    pytest.importorskip("fla", reason="flash-linear-attention is not installed")
    from fla.ops.gsa.naive import naive_recurrent_gsa

    from selectivbench_hf.kernels.bindings.gsa import chunk_abc, chunk_gsa, fused_recurrent_gsa

    q, k, v, s, g = (a.float() for a in inputs("gsa", 70, heads=2)[0])
    q = torch.cat([q] * repeat, 2)
    states = tuple(x.float() for x in inputs("gsa", 70, heads=2)[1])
    for gates, start in ((g, states), (None, None)):
        wanted, last = naive_recurrent_gsa(q, k, v, s, gates, 0.7, start, True)
        for ours in (chunk_gsa, fused_recurrent_gsa):
            got, got_last = ours(q, k, v, s, gates, 0.7, start, True)
            assert error(got, wanted) < 1e-5
            assert max(map(error, got_last, last)) < 1e-5
    if repeat == 1:
        assert error(chunk_abc(q, k, v, s)[0], naive_recurrent_gsa(q, k, v, s)[0]) < 1e-5
        with pytest.raises(NotImplementedError, match="initial_state"):
            chunk_abc(q, k, v, s, initial_state=states)
