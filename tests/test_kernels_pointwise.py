"""Rotary positions, SwiGLU and running sums against autograd and fla's own references."""

import pytest
import torch
from torch.nn import functional as F

pytest.importorskip("triton")
pytest.importorskip("fla", reason="flash-linear-attention is not installed")

from selectivbench_hf import kernels


@pytest.fixture(autouse=True)
def _enabled():
    kernels.enable()


def random(*shape):
    return torch.randn(*shape, dtype=torch.float64, generator=torch.Generator().manual_seed(sum(shape)))


def tables(positions, pairs):
    angles = torch.arange(positions, dtype=torch.float64)[:, None] / 10.0 ** torch.arange(pairs)
    return angles.cos(), angles.sin()


@pytest.mark.parametrize("interleaved", [False, True])
@pytest.mark.parametrize("channels", [6, 8])
def test_rotary(interleaved, channels):
    """Values and gradients against fla's reference, from any first position, with channels beyond the turned ones."""
    from fla.modules.rotary import rotary_embedding
    from fla.modules.rotary.ops import rotary_embedding_ref

    cos, sin = tables(20, 3)
    x = random(2, 9, 3, channels).requires_grad_()
    for offset in (0, 5, torch.tensor([5, 1])):
        starts = offset.tolist() if isinstance(offset, torch.Tensor) else [offset] * 2
        wanted = torch.stack(
            [
                rotary_embedding_ref(row, cos[start : start + 9], sin[start : start + 9], interleaved)
                for row, start in zip(x, starts, strict=True)
            ]
        )
        got = rotary_embedding(x, cos, sin, interleaved=interleaved, seqlen_offsets=offset)
        assert torch.allclose(got, wanted, atol=1e-14)
        grads = [torch.autograd.grad(out.sin().sum(), x)[0] for out in (got, wanted)]
        assert torch.allclose(*grads, atol=1e-14)
    half = rotary_embedding(x.detach().bfloat16(), cos.bfloat16(), sin.bfloat16(), interleaved=interleaved)
    assert half.dtype == torch.bfloat16
    inplace = x.detach().clone()
    assert torch.equal(
        rotary_embedding(inplace, cos, sin, interleaved=interleaved, inplace=True),
        rotary_embedding(x.detach(), cos, sin, interleaved=interleaved),
    )


def test_rotary_refuses_what_it_does_not_know():
    from fla.modules.rotary import rotary_embedding

    cos, sin = tables(20, 3)
    with pytest.raises(NotImplementedError, match="cu_seqlens"):
        rotary_embedding(random(1, 9, 3, 6), cos, sin, cu_seqlens=torch.tensor([0, 4, 9]))
    with pytest.raises(ValueError, match="24 positions, and the table has 20"):
        rotary_embedding(random(1, 9, 3, 6), cos, sin, seqlen_offsets=15)


def test_swiglu():
    from fla.modules.activations import swiglu, swiglu_linear

    x, y, weight, bias = (random(*shape).requires_grad_() for shape in ((4, 3, 6), (4, 3, 6), (5, 6), (5,)))
    product = F.silu(x) * y
    for got, wanted in (
        (swiglu(x, y), product),
        (swiglu_linear(x, y, weight, bias), F.linear(product, weight, bias)),
    ):
        leaves = [x, y] if got.shape == x.shape else [x, y, weight, bias]
        assert torch.allclose(got, wanted)
        for ours, theirs in zip(
            *(torch.autograd.grad(out.cos().sum(), leaves, retain_graph=True) for out in (got, wanted)), strict=True
        ):
            assert torch.allclose(ours, theirs)


@pytest.mark.parametrize("shape", [(2, 70, 3), (2, 70, 3, 4)])
@pytest.mark.parametrize("reverse", [False, True])
def test_running_sums(shape, reverse):
    from fla.ops.utils.cumsum import chunk_global_cumsum

    s = random(*shape)
    wanted = s.flip(1).cumsum(1).flip(1) if reverse else s.cumsum(1)
    assert torch.allclose(chunk_global_cumsum(s, reverse=reverse, scale=0.5, output_dtype=None), wanted / 2)
    assert chunk_global_cumsum(s.bfloat16(), reverse=reverse).dtype == torch.float32


def test_gated_norm_before_a_projection():
    """LightNet's norm, gate and projection in one function, in float64 and with a projection in half precision."""
    from fla.modules.fused_norm_gate import rms_norm_swish_gate_linear

    x, gate, weight, projection = (random(*shape).requires_grad_() for shape in ((2, 7, 6), (2, 7, 6), (6,), (5, 6)))
    leaves = [x, gate, weight, projection]
    wanted = F.linear(F.rms_norm(x, (6,), weight, eps=1e-6) * F.silu(gate), projection)
    got = rms_norm_swish_gate_linear(x, gate, weight, None, projection, None)
    assert torch.allclose(got, wanted)
    expected = torch.autograd.grad(wanted.cos().sum(), leaves)
    for ours, theirs in zip(torch.autograd.grad(got.cos().sum(), leaves), expected, strict=True):
        assert torch.allclose(ours, theirs)
    half = [leaf.detach().bfloat16().requires_grad_() for leaf in leaves]
    out = rms_norm_swish_gate_linear(half[0], half[1], half[2], None, half[3], None)
    assert out.dtype == torch.bfloat16
    for ours, theirs in zip(torch.autograd.grad(out.cos().sum(), half), expected, strict=True):
        assert (ours.double() - theirs).norm() / theirs.norm() < 0.05
