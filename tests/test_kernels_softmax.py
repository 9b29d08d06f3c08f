"""Forgetting attention against its loop: values and all gradients at any length, extreme gates, half precision. Axes: B T H K V."""

import pytest
import torch
from kernels_helper import GATES, STEPS, error, values_and_gradients
from torch.nn import functional as F

from selectivbench_hf.kernels.forgetting import forgetting_attention
from selectivbench_hf.kernels.reference_softmax import forgetting_attention_loop


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


OPS = {"forgetting": (forgetting_attention, forgetting_attention_loop, forgetting_inputs)}


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
@pytest.mark.parametrize("op", OPS)
def test_any_gate_is_exact(op, gate):
    fast, loop, inputs = OPS[op]
    arguments = inputs(100, gate=gate)
    wanted = compared(loop, arguments, torch.float64)
    for index, (ours, theirs) in enumerate(zip(compared(fast, arguments, torch.float32), wanted, strict=True)):
        assert ours.isfinite().all(), index
        size = theirs.norm().clamp_min(0.1 * wanted[3].norm())
        assert (ours.double() - theirs).norm() / size < 1e-4, (gate, index)


@pytest.mark.parametrize("op", OPS)
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


@pytest.mark.parametrize("argument", ["window_size", "cu_seqlens"])
def test_what_is_not_implemented_is_named(argument):
    pytest.importorskip("fla")
    from selectivbench_hf import kernels

    kernels.enable()
    from fla.ops.forgetting_attn import parallel_forgetting_attn

    q, k, v, g = (x.float() for x in forgetting_inputs(5))
    with pytest.raises(NotImplementedError, match=argument):
        parallel_forgetting_attn(q, k, v, g, **{argument: torch.tensor(3)})


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
