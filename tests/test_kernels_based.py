"""Based and ReBased against a plain float64 loop: values, every gradient, odd lengths, states, chunk lengths."""

import pytest
import torch
from kernels_helper import STEPS, error, values_and_gradients

from selectivbench_hf.kernels.based import CHUNK, SQUARE, TAYLOR, based, rebased
from selectivbench_hf.kernels.reference_slots import polynomial_loop

OPS = {"based": (based, TAYLOR, 1e-6), "rebased": (rebased, SQUARE, 1e-3)}


def loop(op):
    """The op as a loop with the helper's arguments."""
    _, coefficients, eps = OPS[op]
    return lambda q, k, v, scale, state=None: polynomial_loop(q, k, v, state, scale, coefficients, eps)


def fast(op, chunk=None):
    """The op with the helper's arguments."""
    function, _, eps = OPS[op]
    return lambda q, k, v, scale, state=None: function(q, k, v, scale, eps, state, chunk)


def inputs(op, steps, batch=2, heads=2, keys=4, values=5, seed=0):
    """float64 arguments, ending with a state that some steps have left."""
    generator = torch.Generator().manual_seed(seed)

    def random(*shape):
        return torch.randn(*shape, generator=generator, dtype=torch.float64)

    made = [[random(batch, n, heads, width) for width in (keys, keys, values)] for n in (9, steps)]
    return [*made[1], loop(op)(*made[0], 0.7)[1]]


@pytest.mark.parametrize("steps", STEPS)
@pytest.mark.parametrize("op", OPS)
def test_chunks_equal_the_loop(op, steps):
    for state in (True, False):
        arguments = inputs(op, steps)
        wanted = values_and_gradients(loop(op), arguments, torch.float64, state=state)
        # a sum of squares may be next to nothing at the first steps without a state: the loop, too, has lost digits there
        for dtype, bound in ((torch.float64, 1e-11), (torch.float32, 1e-5 if state or op == "based" else 1e-4)):
            got = values_and_gradients(fast(op), arguments, dtype, state=state)
            assert max(map(error, got, wanted)) < bound, (state, dtype)


@pytest.mark.parametrize("chunk", [1, 4, 32, 256])
@pytest.mark.parametrize("op", OPS)
def test_the_chunk_length_does_not_matter(op, chunk):
    arguments = inputs(op, 300)
    wanted = values_and_gradients(loop(op), arguments, torch.float64)
    got = values_and_gradients(fast(op, chunk), arguments, torch.float64)
    assert max(map(error, got, wanted)) < 1e-11


@pytest.mark.parametrize("op", OPS)
def test_half_precision_is_only_a_cast(op):
    arguments = [a.bfloat16() for a in inputs(op, 70)[:-1]]
    out, last = fast(op)(*arguments, 0.7)
    wanted, wanted_last = fast(op)(*(a.float() for a in arguments), 0.7)
    assert out.dtype == torch.bfloat16 and torch.equal(out, wanted.bfloat16())
    assert last.dtype == torch.float32 and torch.equal(last, wanted_last)


@pytest.mark.parametrize("op", OPS)
def test_autocast_does_not_reach_inside(op):
    arguments = [a.float().requires_grad_() for a in inputs(op, 70)[:-1]]
    wanted = fast(op)(*arguments, 0.7)[0]
    with torch.autocast("cpu", torch.bfloat16):
        got = fast(op)(*arguments, 0.7)[0]
    assert torch.equal(got, wanted)
    ours, theirs = (torch.autograd.grad(y.sin().sum(), arguments) for y in (got, wanted))
    assert all(torch.equal(a, b) for a, b in zip(ours, theirs, strict=True))


@pytest.mark.parametrize("steps", [40, 150])
@pytest.mark.parametrize("op", OPS)
def test_without_the_state(op, steps):
    """Where nobody asks for the state, a single chunk makes no features: the same outputs and gradients."""
    function, _, eps = OPS[op]
    arguments = [a.requires_grad_() for a in inputs(op, steps)[:-1]]
    wanted, state = function(*arguments, 0.7, eps)
    got, none = function(*arguments, 0.7, eps, want_state=False)
    assert state is not None and (none is None) == (steps <= CHUNK)
    assert torch.allclose(got, wanted, rtol=1e-12)
    ours, theirs = (torch.autograd.grad(y.sin().sum(), arguments) for y in (got, wanted))
    assert all(torch.allclose(a, b, rtol=1e-9, atol=1e-12) for a, b in zip(ours, theirs, strict=True))
