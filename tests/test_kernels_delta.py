"""The delta rule without gates, as a product of Householders, and Comba's, against plain float64 loops (Gated DeltaNet: test_kernels_ops)."""

import functools

import pytest
import torch
from kernels_helper import GATES, STEPS, error, values_and_gradients
from torch.nn import functional as F

from selectivbench_hf.kernels.comba import comba
from selectivbench_hf.kernels.gated_delta import gated_delta, gated_delta_product, unit_lower_inverse
from selectivbench_hf.kernels.reference import gated_delta_loop
from selectivbench_hf.kernels.reference_delta import comba_loop, gated_delta_product_loop


def ungated(function):
    """The op without its fourth argument, the gates."""
    return lambda q, k, v, beta, *rest: function(q, k, v, None, beta, *rest)


def product(writes, function=gated_delta_product):
    """So many writes a step, as a function of (q, k, v, g, beta, scale, initial_state, chunk)."""
    return lambda q, k, v, g, beta, *rest: function(q, k, v, g, beta, writes, *rest)


# name -> op, loop, writes a step, whether there are gates
OPS = {
    "delta": (ungated(gated_delta), ungated(gated_delta_loop), 1, False),
    "comba": (comba, comba_loop, 1, True),
    "product1": (product(1), gated_delta_product_loop, 1, True),
    "product2": (product(2), gated_delta_product_loop, 2, True),
    "product3": (product(3), gated_delta_product_loop, 3, True),
    "product3_ungated": (ungated(product(3)), ungated(gated_delta_product_loop), 3, False),
}


def inputs(op, steps, gate=-0.5, repeat=1, batch=2, heads=2, keys=5, values=6, seed=0):
    """float64 arguments of an op, ending with an initial state."""
    generator = torch.Generator().manual_seed(seed)
    _, _, writes, gated = OPS[op]

    def random(*shape):
        return torch.randn(*shape, generator=generator, dtype=torch.float64)

    wide = (batch, steps * writes, heads * repeat)
    key = functools.partial(random, batch, steps * writes, heads, keys)
    q, k, v = random(batch, steps, heads, keys), F.normalize(key(), dim=-1), random(*wide, values)
    arguments = [q, k, v]
    if op == "comba":
        arguments.append(F.normalize(k + 0.3 * key(), dim=-1))
    if gated:
        arguments.append(gate * torch.rand(batch, steps, heads * repeat, generator=generator, dtype=torch.float64))
    arguments.append(torch.rand(wide, generator=generator, dtype=torch.float64))
    return [*arguments, random(batch, heads * repeat, keys, values)]


@pytest.mark.parametrize("steps", STEPS)
@pytest.mark.parametrize("op", OPS)
def test_chunks_equal_the_loop(op, steps):
    fast, loop, *_ = OPS[op]
    for repeat, state in ((1, True), (2, False)):
        arguments = inputs(op, steps, repeat=repeat, batch=1)
        wanted = values_and_gradients(loop, arguments, torch.float64, state=state)
        for dtype, bound in ((torch.float64, 1e-13), (torch.float32, 1e-5)):
            got = values_and_gradients(fast, arguments, dtype, state=state)
            assert max(map(error, got, wanted)) < bound, (op, steps, repeat, state, dtype)


@pytest.mark.parametrize("chunk", [1, 4, 16, 32, 64])
@pytest.mark.parametrize("op", OPS)
def test_the_chunk_length_does_not_matter(op, chunk):
    fast, loop, *_ = OPS[op]
    arguments = inputs(op, 70)
    wanted = values_and_gradients(loop, arguments, torch.float64)
    got = values_and_gradients(lambda *a: fast(*a, chunk), arguments, torch.float64)
    assert max(map(error, got, wanted)) < 1e-13


@pytest.mark.parametrize("gate", GATES)
@pytest.mark.parametrize("op", [op for op in OPS if OPS[op][3]])
def test_any_gate_is_exact(op, gate):
    """Strong decays need no clamp, and a gate's gradient is right relative to what it could be (it vanishes where all is forgotten)."""
    fast, loop, *_ = OPS[op]
    arguments = inputs(op, 100, gate=gate)
    wanted = values_and_gradients(loop, arguments, torch.float64)
    got = values_and_gradients(fast, arguments, torch.float32)
    for index, (ours, theirs) in enumerate(zip(got, wanted, strict=True)):
        assert ours.isfinite().all(), index
        size = theirs.norm().clamp_min(0.1 * wanted[2].norm())
        assert (ours.double() - theirs).norm() / size < 1e-4, (op, gate, index)


@pytest.mark.parametrize("op", [op for op in OPS if OPS[op][3]])
def test_strong_and_weak_gates_in_one_chunk(op):
    """After one step that forgets all, weak decays still count exactly: sums of decays must not lose them."""
    fast, loop, *_ = OPS[op]
    arguments = inputs(op, 64, gate=-1e-3)
    arguments[-3][:, [0, 5, 40]] = -1e4
    wanted = values_and_gradients(loop, arguments, torch.float64)
    got = values_and_gradients(fast, arguments, torch.float32)
    assert max(map(error, got, wanted)) < 1e-5


@pytest.mark.parametrize("beta", [1.0, 1.9, 2.0])
@pytest.mark.parametrize("op", OPS)
def test_nearly_parallel_keys(op, beta):
    fast, loop, writes, _ = OPS[op]
    generator = torch.Generator().manual_seed(1)
    arguments = inputs(op, 128 // writes, gate=-1e-3, keys=16, values=16)
    base = torch.randn(2, 1, 2, 16, generator=generator, dtype=torch.float64)
    noise = torch.randn(arguments[1].shape, generator=generator, dtype=torch.float64)
    arguments[1] = F.normalize(base + 1e-3 * noise, dim=-1)
    if op == "comba":
        arguments[3] = arguments[1].clone()
    arguments[-2] = torch.full_like(arguments[-2], beta)
    wanted = values_and_gradients(loop, arguments, torch.float64)
    got = values_and_gradients(fast, arguments, torch.float32)
    assert all(g.isfinite().all() for g in got)
    assert max(map(error, got, wanted)) < 1e-3


def test_a_product_of_one_is_the_gated_delta_rule():
    arguments = inputs("product1", 70)
    got = values_and_gradients(product(1), arguments, torch.float32)
    wanted = values_and_gradients(gated_delta, arguments, torch.float32)
    assert all(map(torch.equal, got, wanted))


def test_no_gates_are_gates_of_zero():
    q, k, v, beta, state = inputs("delta", 70)
    got = values_and_gradients(ungated(gated_delta), [q, k, v, beta, state], torch.float64)
    zero = beta.new_zeros(beta.shape)
    wanted = values_and_gradients(gated_delta, [q, k, v, zero, beta, state], torch.float64)
    del wanted[5]  # the gradient of the gates
    assert max(map(error, got, wanted)) < 1e-14


@pytest.mark.parametrize("length", [1, 3, 24, 30])
def test_inverse_of_any_length(length):
    strict = torch.randn(3, length, length, generator=torch.Generator().manual_seed(0), dtype=torch.float64).tril(-1)
    identity = torch.eye(length, dtype=torch.float64)
    assert torch.allclose(
        unit_lower_inverse(0.3 * strict) @ (identity + 0.3 * strict), identity.expand(3, -1, -1), atol=1e-9
    )


@pytest.mark.parametrize("op", OPS)
def test_half_precision_is_only_a_cast(op):
    """bfloat16 inputs are computed with in float32, outputs and gradients are cast once."""
    arguments = [a.bfloat16().requires_grad_() for a in inputs(op, 70)[:-1]]
    out, last = OPS[op][0](*arguments)
    exact = [a.detach().float().requires_grad_() for a in arguments]
    wanted, _ = OPS[op][0](*exact)
    assert out.dtype == torch.bfloat16 and last.dtype == torch.float32
    assert torch.equal(out, wanted.bfloat16())
    weighting = torch.linspace(0, 7, out.numel()).view_as(out).cos().bfloat16()
    got = torch.autograd.grad(out, arguments, weighting)
    for ours, theirs in zip(got, torch.autograd.grad(wanted, exact, weighting.float()), strict=True):
        assert torch.equal(ours, theirs.bfloat16())


@pytest.mark.parametrize("op", OPS)
def test_autocast_does_not_reach_inside(op):
    arguments = [a.float() for a in inputs(op, 70)[:-1]]
    wanted, _ = OPS[op][0](*arguments)
    with torch.autocast("cpu", torch.bfloat16):
        got, _ = OPS[op][0](*arguments)
    assert torch.equal(got, wanted)


def test_flas_names():
    """Both entry points of a layer, with fla's arguments: the same numbers as the op, and what is not implemented is named."""
    pytest.importorskip("fla", reason="flash-linear-attention is not installed")
    from selectivbench_hf.kernels.bindings import comba as named_comba
    from selectivbench_hf.kernels.bindings import delta as named
    from selectivbench_hf.kernels.bindings.gated_delta import fused_recurrent_gated_delta_rule
    from selectivbench_hf.kernels.small import l2norm

    q, k, v, beta, state = inputs("delta", 40)
    k = 3 * k
    wanted = gated_delta(l2norm(q), l2norm(k), v, None, beta, 0.7, state)
    for function in (named.chunk_delta_rule, named.fused_recurrent_delta_rule):
        got = function(q, k, v, beta, 0.7, state, True, use_qk_l2norm_in_kernel=True)
        assert all(map(torch.equal, got, wanted))
        assert function(q, k, v, beta)[1] is None
        with pytest.raises(NotImplementedError, match="cu_seqlens"):
            function(q, k, v, beta, cu_seqlens=torch.tensor([0, 40]))
    ones = torch.ones_like(beta)
    assert torch.equal(named.fused_recurrent_delta_rule(q, k / 3, v)[0], named.chunk_delta_rule(q, k / 3, v, ones)[0])
    with pytest.raises(NotImplementedError, match="beta for every value channel"):
        named.fused_recurrent_delta_rule(q, k, v, beta[..., None].expand_as(v))
    with pytest.raises(NotImplementedError, match="beta for every value channel"):
        fused_recurrent_gated_delta_rule(q, k, v, beta=beta[..., None].expand_as(v))
    with pytest.raises(NotImplementedError, match="head_first"):
        named.chunk_delta_rule(q, k, v, beta, head_first=True)

    q, k, v, g, beta, state = inputs("product2", 40)
    got = named.chunk_gated_delta_product(q, k, v, g, beta, 2, 0.7, state, True, True)
    wanted = gated_delta_product(l2norm(q), l2norm(k), v, g, beta, 2, 0.7, state)
    assert all(map(torch.equal, got, wanted))
    with pytest.raises(NotImplementedError, match="cp_context"):
        named.chunk_gated_delta_product(q, k, v, g, beta, 2, cp_context=object())

    q, k, v, p, g, beta, state = inputs("comba", 40, repeat=2)
    wanted = comba(l2norm(q), l2norm(k), v, l2norm(p), g, beta, 0.7, state)
    got = named_comba.chunk_comba(q, k, v, p, g, beta, 0.7, state, True, True)
    short = named_comba.fused_recurrent_comba(q, k, p, v, g, beta, 0.7, state, True, True)
    assert all(map(torch.equal, got, wanted)) and all(map(torch.equal, short, wanted))
    assert torch.equal(named_comba.chunk_comba(q, k, v, None, g)[0], comba(q, k, v, k, g, torch.ones_like(beta))[0])
    with pytest.raises(NotImplementedError, match="cu_seqlens"):
        named_comba.chunk_comba(q, k, v, p, g, cu_seqlens=torch.tensor([0, 40]))
    with pytest.raises(ValueError, match="3 value heads are not a multiple of 2"):
        named_comba.chunk_comba(q, k, v[:, :, :3], p, g)
