"""LightNet's additive gate and MesaNet against plain float64 loops: values, every gradient, odd lengths, states, extremes."""

import pytest
import torch
from kernels_helper import GATES, STEPS, error
from torch.nn import functional as F

from selectivbench_hf.kernels.linear import additive_gate
from selectivbench_hf.kernels.mesa import conjugate_gradients, mesa, mesa_step
from selectivbench_hf.kernels.reference_linear import additive_gate_loop, mesa_loop


def randoms(seed=0):
    generator = torch.Generator().manual_seed(seed)
    return lambda *shape: torch.randn(*shape, generator=generator, dtype=torch.float64)


def outcome(function, arguments, dtype):
    """Everything a function returns, and the gradients of all arguments for a fixed weighting of it."""
    leaves = [a.to(dtype).requires_grad_() for a in arguments]
    outputs = function(*leaves)
    total = sum(
        (out * torch.linspace(0, 7 - i, out.numel(), dtype=dtype).view_as(out).cos()).sum()
        for i, out in enumerate(outputs)
    )
    return [*outputs, *torch.autograd.grad(total, leaves)]


# --- LightNet's gate -------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("steps", STEPS)
@pytest.mark.parametrize("state", [False, True])
def test_additive_gate_equals_the_loop(steps, state):
    random = randoms()
    arguments = [random(2, steps, 2, 5), *([random(2, 1, 2, 5)] if state else [])]
    wanted = outcome(additive_gate_loop, arguments, torch.float64)
    for dtype, bound in ((torch.float64, 1e-13), (torch.float32, 1e-5)):
        assert max(map(error, outcome(additive_gate, arguments, dtype), wanted)) < bound


@pytest.mark.parametrize("size", [1e-4, 1.0, 30.0, 1e4])
def test_additive_gate_of_any_size(size):
    """No overflow where scores are large, no NaN where a key is all or nothing."""
    random = randoms()
    arguments = [size * random(2, 100, 2, 5), size * random(2, 1, 2, 5)]
    wanted = outcome(additive_gate_loop, arguments, torch.float64)
    got = outcome(additive_gate, arguments, torch.float32 if size < 1e3 else torch.float64)
    assert all(part.isfinite().all() for part in got)
    assert max(map(error, got, wanted)) < 1e-4


def test_a_state_of_minus_infinity_is_none():
    random = randoms()
    x, nothing = random(2, 9, 2, 5).requires_grad_(), torch.full((2, 1, 2, 5), -torch.inf).requires_grad_()
    for ours, theirs in zip(additive_gate(x, nothing), additive_gate(x), strict=True):
        assert torch.equal(ours, theirs)
    grads = torch.autograd.grad(sum(part.cos().sum() for part in additive_gate(x, nothing)), [x, nothing])
    assert torch.equal(grads[0], torch.autograd.grad(sum(part.cos().sum() for part in additive_gate(x)), x)[0])
    assert not grads[1].any()


def test_additive_gate_in_half_precision_is_only_a_cast():
    x = randoms()(2, 70, 2, 5).bfloat16()
    wanted = additive_gate(x.float())
    k, g, last = additive_gate(x)
    assert torch.equal(k, wanted[0].bfloat16()) and torch.equal(g, wanted[1].bfloat16())
    assert last.dtype == torch.float32 and torch.equal(last, wanted[2])
    k, g, _ = additive_gate(x, None, torch.float32, torch.float64)
    assert torch.equal(k, wanted[0]) and g.dtype == torch.float64


# --- MesaNet ---------------------------------------------------------------------------------------------------------------------


def mesa_inputs(steps, gate=-0.5, state=True, keys=5, values=6, seed=0):
    random = randoms(seed)
    shape = (2, steps, 2)
    q, k = (F.normalize(random(*shape, keys), dim=-1) for _ in range(2))
    arguments = [q, k, random(*shape, values), gate * random(*shape).sigmoid(), random(*shape).sigmoid()]
    arguments.append(0.25 + F.softplus(random(2, keys)))
    if state:
        root = random(2, 2, keys, keys)
        arguments += [root @ root.mT, random(2, 2, keys, values)]
    return arguments


@pytest.mark.parametrize("steps", STEPS)
def test_mesa_equals_the_exact_solution(steps):
    for state in (True, False):
        arguments = mesa_inputs(steps, state=state)
        wanted = outcome(mesa_loop, arguments, torch.float64)
        for dtype, bound in ((torch.float64, 1e-12), (torch.float32, 1e-5)):
            assert max(map(error, outcome(mesa, arguments, dtype), wanted)) < bound, (state, dtype)


@pytest.mark.parametrize("chunk", [1, 4, 32, 64])
def test_the_chunk_length_does_not_matter(chunk):
    arguments = mesa_inputs(70)
    wanted = outcome(mesa_loop, arguments, torch.float64)
    assert max(map(error, outcome(lambda *a: mesa(*a, chunk=chunk), arguments, torch.float64), wanted)) < 1e-12


@pytest.mark.parametrize("gate", GATES)
def test_any_gate_is_exact(gate):
    """The weakest lets sums grow, which only makes the systems harder; the strongest leaves one step's outer product and the ridge."""
    arguments = mesa_inputs(100, gate=gate)
    wanted = outcome(mesa_loop, arguments, torch.float64)
    for index, (ours, theirs) in enumerate(zip(outcome(mesa, arguments, torch.float32), wanted, strict=True)):
        assert ours.isfinite().all(), index
        assert error(ours, theirs) < 1e-4, index


def test_nearly_parallel_keys():
    arguments = mesa_inputs(128, gate=-1e-3, keys=16, values=16)
    random = randoms(1)
    arguments[1] = F.normalize(random(2, 1, 2, 16) + 1e-3 * random(2, 128, 2, 16), dim=-1)
    wanted = outcome(mesa_loop, arguments, torch.float64)
    assert max(map(error, outcome(mesa, arguments, torch.float32), wanted)) < 1e-3


def test_mesa_steps_equal_the_whole():
    arguments = mesa_inputs(9)
    sequences, ridge, states = arguments[:5], arguments[5], arguments[6:]
    wanted, *last = mesa(*arguments)
    got = []
    for t in range(9):
        out, *states = mesa_step(*(x[:, t] for x in sequences), ridge, *states)
        got.append(out)
    assert error(torch.stack(got, 1), wanted) < 1e-12
    assert max(map(error, states, last)) < 1e-12


def test_mesa_in_half_precision_is_only_a_cast():
    arguments = [a.bfloat16() for a in mesa_inputs(70, state=False)]
    wanted = mesa(*(a.float() for a in arguments))
    out, *states = mesa(*arguments)
    assert torch.equal(out, wanted[0].bfloat16())
    assert all(
        ours.dtype == torch.float32 and torch.equal(ours, theirs)
        for ours, theirs in zip(states, wanted[1:], strict=True)
    )
    with torch.autocast("cpu", torch.bfloat16):
        inside = mesa(*(a.float() for a in arguments))
    assert all(map(torch.equal, inside, wanted))


def test_a_solved_row_does_not_depend_on_the_others():
    """A row alone, beside an easy one, and beside one that needs many more iterations: the same bits."""
    random = randoms()
    root = random(3, 8, 8)
    matrices = root @ root.mT + torch.diag_embed(torch.tensor([[10.0], [1.0], [1e-3]]).expand(3, 8))
    right = random(3, 8)

    def solve(rows):
        return conjugate_gradients(lambda p: (matrices[rows] * p.unsqueeze(-2)).sum(-1), right[rows], 30)

    assert torch.equal(solve([0, 1, 2])[:1], solve([0]))
    assert torch.equal(solve([1, 2])[:1], solve([1]))
    assert torch.allclose(solve([0, 1]), torch.linalg.solve(matrices, right)[:2], rtol=1e-9)
    assert not conjugate_gradients(lambda p: p, torch.zeros(2, 3), 30).any()
