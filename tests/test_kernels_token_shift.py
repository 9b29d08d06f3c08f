"""RWKV's token shift under fla's name: values, gradients, and pieces through the cache."""

import pytest
import torch

pytest.importorskip("triton")
pytest.importorskip("fla", reason="flash-linear-attention is not installed")

from selectivbench_hf import kernels


@pytest.fixture(autouse=True)
def _enabled():
    kernels.enable()


@pytest.mark.parametrize("steps", [1, 2, 65])
@pytest.mark.parametrize("cached", [False, True])
def test_token_shift_equals_flas_reference(steps, cached):
    from fla.modules.token_shift import token_shift, token_shift_ref

    generator = torch.Generator().manual_seed(0)
    x, before, dy = (
        torch.randn(3, n, 5, generator=generator, dtype=torch.float64, requires_grad=True) for n in (steps, 1, steps)
    )
    cache = before[:, 0] if cached else None
    got, last = token_shift(x, cache=cache, output_cache=True)
    whole = torch.cat((before, x), 1) if cached else x
    wanted = token_shift_ref(whole)[:, cached:]
    assert torch.equal(got, wanted) and torch.equal(last, x[:, -1])
    assert torch.equal(token_shift(x, cache=cache), wanted)
    leaves = [x, before] if cached else [x]
    ours, theirs = (torch.autograd.grad((y * dy).sum() + x[:, -1].sum(), leaves) for y in (got, wanted))
    assert all(torch.allclose(a, b) for a, b in zip(ours, theirs, strict=True))


def test_token_shift_in_pieces():
    from fla.modules.token_shift import token_shift

    x, cache, pieces = torch.randn(2, 9, 4), None, []
    for part in x.split((1, 3, 4, 1), 1):
        delta, cache = token_shift(part, cache=cache, output_cache=True)
        pieces.append(delta)
    assert torch.equal(torch.cat(pieces, 1), token_shift(x))


@pytest.mark.parametrize("argument", ["cu_seqlens", "chunk_indices"])
def test_packed_sequences_are_refused(argument):
    from fla.modules.token_shift import token_shift

    with pytest.raises(NotImplementedError, match=argument):
        token_shift(torch.randn(1, 8, 4), **{argument: torch.tensor([0, 8])})
