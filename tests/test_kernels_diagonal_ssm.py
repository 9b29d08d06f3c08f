"""S4D's recurrence in chunks against a plain float64 loop, and against the paper's definition by continuous time."""

import math

import pytest
import torch
from kernels_helper import GATES, STEPS, error, values_and_gradients

from selectivbench_hf.kernels.diagonal_ssm import diagonal_ssm
from selectivbench_hf.kernels.reference_scan import diagonal_ssm_loop


def inputs(steps, gate=-0.1, turn=3.0, batch=2, width=5, states=4, seed=0):
    """u, log decay, phase, weight and a state, float64."""
    generator = torch.Generator().manual_seed(seed)

    def random(*shape):
        return torch.randn(*shape, generator=generator, dtype=torch.float64)

    def between(*shape):
        return torch.rand(*shape, generator=generator, dtype=torch.float64)

    log_decay, phase = gate * between(width, states), turn * between(width, states)
    return [random(batch, steps, width), log_decay, phase, random(width, states, 2), random(batch, width, states, 2)]


def run(function, arguments, dtype, state=True):
    """Values and gradients: neither form knows a scale."""
    return values_and_gradients(
        lambda *a: function(*(a[:-2] if state else a[:-1]), *(a[-1:] if state else ())), arguments, dtype, state=state
    )


@pytest.mark.parametrize("steps", STEPS)
def test_equal_to_the_loop(steps):
    for state in (True, False):
        arguments = inputs(steps)
        wanted = run(diagonal_ssm_loop, arguments, torch.float64, state)
        for dtype, bound in ((torch.float64, 1e-12), (torch.float32, 1e-5)):
            assert max(map(error, run(diagonal_ssm, arguments, dtype, state), wanted)) < bound, (steps, state, dtype)


@pytest.mark.parametrize("chunk", [1, 4, 16, 64])
def test_the_chunk_length_does_not_matter(chunk):
    arguments = inputs(70)
    wanted = run(diagonal_ssm_loop, arguments, torch.float64)
    got = run(lambda *a: diagonal_ssm(*a, chunk=chunk), arguments, torch.float64)
    assert max(map(error, got, wanted)) < 1e-12


@pytest.mark.parametrize("gate", GATES)
def test_any_decay_is_exact(gate):
    arguments = inputs(100, gate=gate)
    wanted = run(diagonal_ssm_loop, arguments, torch.float64)
    got = run(diagonal_ssm, arguments, torch.float32)
    assert all(g.isfinite().all() for g in got)
    for index, (ours, theirs) in enumerate(zip(got, wanted, strict=True)):
        size = theirs.norm().clamp_min(0.1 * wanted[2].norm())
        assert (ours.double() - theirs).norm() / size < 1e-4, (gate, index)


def test_many_turns_are_exact_in_float32():
    """A phase of 100 radians a step, as a float32 number: what is left of 64 steps of it is not lost."""
    arguments = [a.float().double() for a in inputs(64, turn=100.0)]
    got, wanted = (f(*arguments)[0] for f in (diagonal_ssm, diagonal_ssm_loop))
    assert error(got, wanted) < 1e-12
    assert error(diagonal_ssm(*(a.float() for a in arguments))[0], wanted) < 1e-5


def test_half_precision_is_only_a_cast_and_autocast_stays_outside():
    arguments = [a.bfloat16() for a in inputs(70)[:-1]]
    out, last = diagonal_ssm(*arguments)
    wanted, state = diagonal_ssm(*(a.float() for a in arguments))
    assert out.dtype == torch.bfloat16 and last.dtype == torch.float32
    assert torch.equal(out, wanted.bfloat16()) and torch.equal(last, state)
    arguments = [a.float() for a in inputs(70)[:-1]]
    with torch.autocast("cpu", torch.bfloat16):
        got, _ = diagonal_ssm(*arguments)
    assert torch.equal(got, diagonal_ssm(*arguments)[0])


def test_the_layer_is_the_paper():
    """Zero-order hold of x' = A x + u, y = 2 Re C x + D u, with A = -1/2 + i pi n, by small steps of continuous time."""
    from selectivbench_hf.models.layers.s4d import S4D

    torch.manual_seed(0)
    layer = S4D(3, state_size=8, layer_idx=0).double()
    u, fine = torch.randn(2, 12, 3, dtype=torch.float64), 400
    A = -0.5 + 1j * math.pi * torch.arange(4)
    C, dt = torch.view_as_complex(layer.C), layer.log_dt.exp()[:, None]
    assert ((dt >= 0.001) & (dt <= 0.1)).all()
    state, outputs = torch.zeros(2, 3, 4, dtype=torch.complex128), []
    for t in range(12):
        for _ in range(fine):  # midpoint rule
            middle = state + dt / fine / 2 * (A * state + u[:, t, :, None])
            state = state + dt / fine * (A * middle + u[:, t, :, None])
        outputs.append(2 * (C * state).real.sum(-1) + layer.D * u[:, t])
    wanted = torch.nn.functional.glu(layer.out_proj(torch.nn.functional.gelu(torch.stack(outputs, 1))))
    assert error(layer(u), wanted) < 1e-6
