"""Log-linear attention in chunks and step by step against all pairs in float64, and against fla's own plain form."""

import pytest
import torch
from kernels_helper import GATES, STEPS, error

from selectivbench_hf import kernels
from selectivbench_hf.kernels.log_linear import fenwick_states, log_linear, log_linear_step
from selectivbench_hf.kernels.reference_scan import log_linear_pairs

LEVELS = 11


def inputs(steps, gate=-0.5, groups=1, batch=2, heads=2, keys=5, values=6, seed=0):
    """q, k, v, log decay and the levels' scales, float64."""
    generator = torch.Generator().manual_seed(seed)

    def random(*shape):
        return torch.randn(batch, steps, *shape, generator=generator, dtype=torch.float64)

    g = gate * torch.rand(batch, steps, heads, generator=generator, dtype=torch.float64)
    return [random(groups, keys), random(groups, keys), random(heads, values), g, random(heads, LEVELS)]


def run(function, arguments, dtype, *more):
    """The output and the gradients of all arguments, for a fixed weighting."""
    leaves = [a.to(dtype).requires_grad_() for a in arguments]
    out = function(*leaves, 0.7, *more)
    weighting = torch.linspace(0, 7, out.numel(), dtype=dtype).view_as(out).cos()
    return [out, *torch.autograd.grad((out * weighting).sum(), leaves)]


@pytest.mark.parametrize("steps", STEPS)
@pytest.mark.parametrize("groups", [1, 2])
def test_equal_to_all_pairs(steps, groups):
    arguments = inputs(steps, groups=groups)
    wanted = run(log_linear_pairs, arguments, torch.float64)
    for dtype, bound in ((torch.float64, 1e-13), (torch.float32, 1e-5)):
        assert max(map(error, run(log_linear, arguments, dtype), wanted)) < bound, (steps, groups, dtype)


@pytest.mark.parametrize("chunk", [1, 2, 16, 64, 128])
def test_the_chunk_length_does_not_matter(chunk):
    arguments = inputs(150)
    wanted = run(log_linear_pairs, arguments, torch.float64)
    assert max(map(error, run(log_linear, arguments, torch.float64, chunk), wanted)) < 1e-13


@pytest.mark.parametrize("steps", [1, 63, 100, 128])
def test_equal_to_flas_plain_form(steps):
    pytest.importorskip("triton")
    naive = pytest.importorskip("fla.ops.log_linear_attn.naive").naive_log_linear_attn
    arguments = inputs(steps)
    assert error(log_linear(*arguments, 0.7), naive(*arguments, 0.7)) < 1e-13
    kernels.enable()
    from fla.ops.log_linear_attn import chunk_log_linear_attn

    assert torch.equal(chunk_log_linear_attn(*arguments, scale=0.7)[0], log_linear(*arguments, 0.7))
    with pytest.raises(NotImplementedError, match="output_final_state"):
        chunk_log_linear_attn(*arguments, output_final_state=True)


@pytest.mark.parametrize("gate", GATES)
def test_any_gate_is_exact(gate):
    arguments = inputs(150, gate=gate)
    wanted, got = run(log_linear_pairs, arguments, torch.float64), run(log_linear, arguments, torch.float32)
    for index, (ours, theirs) in enumerate(zip(got, wanted, strict=True)):
        assert ours.isfinite().all(), index
        assert (ours.double() - theirs).norm() / theirs.norm().clamp_min(0.1 * wanted[1].norm()) < 1e-4, (gate, index)


def test_strong_and_weak_gates_together():
    arguments = inputs(300, gate=-1e-3)
    arguments[3][:, [0, 5, 40, 130]] = -1e4
    wanted = run(log_linear_pairs, arguments, torch.float64)
    assert max(map(error, run(log_linear, arguments, torch.float32), wanted)) < 1e-5


@pytest.mark.parametrize("prefix", [0, 1, 63, 64, 96, 127])
def test_step_by_step_and_from_the_states_of_a_prefix(prefix):
    q, k, v, g, scales = arguments = inputs(200, groups=2)
    whole = log_linear_pairs(*arguments, 0.7)
    states, outputs = fenwick_states(k[:, :prefix], v[:, :prefix], g[:, :prefix], LEVELS), []
    for t in range(prefix, 200):
        used = states.flatten(2).any(-1).any(0)
        assert used.tolist() == [bool(t >> bit & 1) for bit in range(LEVELS - 1)]  # one matrix for every bit of t
        out, states = log_linear_step(q[:, t], k[:, t], v[:, t], g[:, t], scales[:, t], 0.7, states, t)
        outputs.append(out)
    assert error(torch.stack(outputs, 1), whole[:, prefix:]) < 1e-13
    assert error(states, fenwick_states(k, v, g, LEVELS)) < 1e-13


def test_more_steps_than_levels_are_refused():
    arguments = inputs(1 << (LEVELS - 1), batch=1, heads=1, keys=1, values=1)
    log_linear(*arguments)
    longer = inputs((1 << (LEVELS - 1)) + 1, batch=1, heads=1, keys=1, values=1)
    with pytest.raises(ValueError, match="11 levels reach 1024 steps, and the sequence has 1025"):
        log_linear(*longer)
    states = fenwick_states(*arguments[1:4], LEVELS)
    with pytest.raises(ValueError, match="the sequence has 1025"):
        log_linear_step(*(x[:, -1] for x in longer), 1.0, states, 1024)


def test_half_precision_is_only_a_cast_and_autocast_stays_outside():
    arguments = [a.bfloat16() for a in inputs(150)]
    out, wanted = log_linear(*arguments), log_linear(*(a.float() for a in arguments))
    assert out.dtype == torch.bfloat16 and torch.equal(out, wanted.bfloat16())
    arguments = [a.float() for a in inputs(150)]
    with torch.autocast("cpu", torch.bfloat16):
        got = log_linear(*arguments)
    assert torch.equal(got, log_linear(*arguments))
