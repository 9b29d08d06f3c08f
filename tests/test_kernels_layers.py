"""Whole layers: ours on the CPU against fla's own Triton kernels (recorded in the interpreter), and against plain torch."""

import subprocess
import sys
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file
from torch.nn import functional as F

pytest.importorskip("triton")
pytest.importorskip("fla", reason="flash-linear-attention is not installed")

from fla_interpreter import case, make_layer, run_case
from interpreter_cases import CASES

from selectivbench_hf import kernels
from selectivbench_hf.kernels import small

RECORDINGS = Path(__file__).parent / "recordings"


@pytest.fixture(autouse=True)
def _enabled():
    kernels.enable()


def error(got, wanted):
    """Relative error in the 2-norm; a gradient that vanishes is measured against 0.01."""
    return ((got.double() - wanted.double()).norm() / wanted.double().norm().clamp_min(1e-2)).item()


@pytest.mark.parametrize("name", CASES)
def test_layers_equal_flas_kernels(name):
    train, options = case(name)[3:]
    recorded = load_file(RECORDINGS / f"{name}.safetensors")
    layer = make_layer(name).train(train)
    layer.load_state_dict(
        {k.removeprefix("weight."): v for k, v in recorded.items() if k.startswith("weight.")}, strict=True
    )
    got = run_case(layer, recorded["x"], train)
    assert set(got) == {k for k in recorded if k == "output" or k.startswith("gradient.")}
    assert error(got.pop("output"), recorded["output"]) < options.get("output", 1e-5)
    assert {k: e for k in got if (e := error(got[k], recorded[k])) > options.get("gradient", 5e-5)} == {}


@pytest.mark.slow
def test_the_recordings_are_what_fla_computes(tmp_path):
    script = Path(__file__).parent / "fla_interpreter.py"
    subprocess.run([sys.executable, str(script), str(tmp_path)], check=True, timeout=7200)
    for name in CASES:
        old, new = load_file(RECORDINGS / f"{name}.safetensors"), load_file(tmp_path / f"{name}.safetensors")
        assert set(old) == set(new)
        assert max(error(new[k], old[k]) for k in old) < 1e-5, name


@pytest.mark.parametrize(
    "kwargs", [{}, {"rmsnorm": False}, {"dt_limit": (0.01, 0.05)}, {"D_has_hdim": True, "norm_before_gate": True}]
)
@pytest.mark.parametrize("steps", [1, 40, 100])
def test_mamba2_equals_its_own_torch_scan(steps, kwargs):
    import fla.layers

    from selectivbench_hf.models.layers.mamba2 import Mamba2

    torch.manual_seed(0)
    arguments = {"hidden_size": 32, "head_dim": 16, "state_size": 24, "chunk_size": 16, "layer_idx": 0, **kwargs}
    theirs = fla.layers.Mamba2(**arguments)
    ours = Mamba2(**arguments)
    ours.load_state_dict(theirs.state_dict(), strict=True)
    x = torch.randn(2, steps, 32)
    kernels.enable()
    got = run_case(ours, x, True)
    through_fla = run_case(theirs, x, True)
    scan = fla.layers.mamba2.Mamba2.torch_forward.__wrapped__
    monkey = pytest.MonkeyPatch()
    monkey.setattr(
        fla.layers.mamba2.Mamba2, "torch_forward", scan
    )  # only the convolution's and the norm's kernels stay ours
    wanted = run_case(theirs, x, True)
    monkey.undo()
    assert error(got["output"], wanted["output"]) < 1e-5
    assert {k: e for k in wanted if (e := error(got[k], wanted[k])) > 5e-5} == {}
    assert max(error(through_fla[k], got[k]) for k in got) < 1e-6


def test_mamba2_groups_and_decoding():
    """Two groups of B and C, whole against step by step from the cache."""
    from selectivbench_hf.kernels.mamba2 import ssd_forward
    from selectivbench_hf.models.layers.mamba2 import Mamba2

    torch.manual_seed(0)
    layer = Mamba2(hidden_size=32, head_dim=8, state_size=12, n_groups=2, layer_idx=0).eval()
    x = torch.randn(2, 21, 32)
    with torch.no_grad():
        whole, conv_state, state = ssd_forward(layer, x, use_cache=True)
        cache, pieces = None, []
        for first, last in ((0, 1), (1, 3), (3, 13), *((t, t + 1) for t in range(13, 21))):
            piece, *cache = ssd_forward(
                layer,
                x[:, first:last],
                cache and dict(zip(("conv_state", "recurrent_state"), cache, strict=True)),
                True,
            )
            pieces.append(piece)
    assert error(torch.cat(pieces, 1), whole) < 1e-5
    assert error(cache[0], conv_state) < 1e-6 and error(cache[1], state) < 1e-5


@pytest.mark.parametrize("layer_name", ["GatedLinearAttention", "GatedDeltaNet"])
@pytest.mark.parametrize("pieces", [(1, 96), (3, 94), (63, 34), (64, 33), (65, 32), (96, 1), (1,) * 97])
def test_pieces_with_the_cache_equal_the_whole(layer_name, pieces):
    import fla.layers
    from fla.models.utils import Cache

    torch.manual_seed(0)
    width = {"head_dim": 12} if layer_name == "GatedDeltaNet" else {"use_short_conv": True}
    layer = getattr(fla.layers, layer_name)(hidden_size=32, num_heads=2, layer_idx=0, **width).eval()
    x = torch.randn(3, 97, 32)
    with torch.no_grad():
        whole = layer(x)[0]
        cache = Cache()
        got = torch.cat([layer(part, past_key_values=cache, use_cache=True)[0] for part in x.split(pieces, 1)], 1)
    assert error(got, whole) < 1e-5


@pytest.mark.parametrize("layer_name", ["GatedLinearAttention", "GatedDeltaNet", "Mamba2"])
def test_very_long_sequences(layer_name):
    """65,537 steps at once and in pieces; the last piece is one step beyond a power of two."""
    import fla.layers
    from fla.models.utils import Cache

    from selectivbench_hf.models.layers.mamba2 import Mamba2

    torch.manual_seed(0)
    width = {"GatedDeltaNet": {"head_dim": 12, "num_heads": 2}, "Mamba2": {"head_dim": 32, "state_size": 16}}
    width = width.get(layer_name, {"num_heads": 2})
    layer = {"Mamba2": Mamba2}.get(layer_name) or getattr(fla.layers, layer_name)
    layer = layer(hidden_size=32, layer_idx=0, **width).eval()
    x = torch.randn(1, 65537, 32)
    with torch.no_grad():
        whole = layer(x)[0]
        cache = Cache()
        pieces = x.split((30000, 35536, 1), 1)
        got = torch.cat([layer(part, past_key_values=cache, use_cache=True)[0] for part in pieces], 1)
    assert error(got, whole) < 1e-4
    assert error(got[:, -1], whole[:, -1]) < 1e-4


@pytest.mark.parametrize("steps", [1, 2, 9])
@pytest.mark.parametrize("state", [False, True])
def test_short_convolution_gradients(steps, state):
    generator = torch.Generator().manual_seed(0)

    def random(*shape):
        return torch.randn(*shape, generator=generator, dtype=torch.float64, requires_grad=True)

    x, weight, bias, before, residual = (
        random(2, steps, 3),
        random(3, 4),
        random(3),
        random(2, 3, 4),
        random(2, steps, 3),
    )
    initial = before if state else None
    padded = torch.cat((before[..., 1:] if state else before.new_zeros(2, 3, 3), x.transpose(1, 2)), 2)
    wanted = F.silu(F.conv1d(padded, weight[:, None], bias, groups=3)).transpose(1, 2) + residual
    full = torch.cat((before if state else before.new_zeros(2, 3, 4), x.transpose(1, 2)), 2)[..., -4:]
    with torch.no_grad():  # as inside fla's autograd function
        got, final = small.causal_conv1d_fwd(x, weight, bias, residual, initial, True, "silu")
    assert torch.allclose(got, wanted) and torch.allclose(final, full)
    dy, dht = torch.randn_like(got), torch.randn_like(final)
    leaves = [x, weight, bias, residual, *([before] if state else [])]
    expected = torch.autograd.grad((wanted * dy).sum() + (full * dht).sum(), leaves)
    with torch.no_grad():
        ours = small.causal_conv1d_bwd(x, dy, dht, weight, bias, residual, initial, "silu")
    for a, b in zip(ours, expected, strict=False):
        assert torch.allclose(a, b)


@pytest.mark.parametrize("rms", [False, True])
@pytest.mark.parametrize("activation", ["swish", "sigmoid", None])
def test_norm_gradients(rms, activation):
    """Against autograd, with residual, bias and the sum passed on."""
    generator = torch.Generator().manual_seed(0)

    def random(*shape):
        return torch.randn(*shape, generator=generator, dtype=torch.float64, requires_grad=True)

    x, g, residual, weight, bias = random(7, 5), random(7, 5), random(7, 5), random(5), random(5)
    total = x + residual
    centred = total if rms else total - total.mean(-1, keepdim=True)
    wanted = centred * (centred.square().mean(-1, keepdim=True) + 1e-5).rsqrt() * weight + bias
    gate = {"swish": F.silu, "sigmoid": torch.sigmoid, None: torch.ones_like}[activation](g)
    dy, dres = torch.randn_like(x), torch.randn_like(x)
    leaves = [x, weight, bias, residual] + [g] * (activation is not None)
    expected = torch.autograd.grad((wanted * gate * dy).sum() + (total * dres).sum(), leaves)
    with torch.no_grad():
        if activation:
            y, mean, rstd, kept = small.layer_norm_gated_fwd(
                x, g, weight, bias, activation, 1e-5, residual, is_rms_norm=rms
            )
            dx, dg, dw, db, dr = small.layer_norm_gated_bwd(
                dy, kept, g, weight, bias, activation, 1e-5, mean, rstd, dres, True, rms, x.dtype
            )
            ours = [dx, dw, db, dr, dg]
        else:
            y, mean, rstd, kept = small.layer_norm_fwd(x, weight, bias, 1e-5, residual, is_rms_norm=rms)
            ours = small.layer_norm_bwd(dy, kept, weight, bias, mean, rstd, dres, True, rms, x.dtype)
    assert torch.allclose(y, wanted * gate)
    for a, b in zip(ours, expected, strict=True):
        assert torch.allclose(a, b)


def test_group_norm():
    from fla.modules import GroupNorm

    torch.manual_seed(0)
    norm = GroupNorm(3, 12)
    with torch.no_grad():
        norm.weight.normal_()
    x = torch.randn(2, 5, 12, requires_grad=True)
    wanted = F.group_norm(x.flatten(0, 1), 3, norm.weight, norm.bias, norm.eps).view_as(x)
    got = norm(x)
    assert torch.allclose(got, wanted, atol=1e-5)
    ours, theirs = (torch.autograd.grad(y.cos().sum(), [x, norm.weight]) for y in (got, wanted))
    assert all(torch.allclose(a, b, atol=1e-4) for a, b in zip(ours, theirs, strict=True))
