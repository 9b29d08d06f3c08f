"""transformers' own models with linear layers: with fla installed they die on CPU tensors, and with our kernels they run."""

from pathlib import Path

import pytest
import torch

pytest.importorskip("triton")
pytest.importorskip("fla", reason="flash-linear-attention is not installed")

from transformers_models import MODELS

SCRIPT = Path(__file__).parent / "transformers_models.py"


@pytest.fixture(scope="module")
def results(tmp_path_factory, environment):
    """how -> name -> what the script found, each computed once."""
    import subprocess
    import sys

    done = {}

    def get(how):
        if how not in done:
            file = tmp_path_factory.mktemp(how) / "found.pt"
            subprocess.run([sys.executable, SCRIPT, how, file], env=environment(), check=True, timeout=300)
            done[how] = torch.load(file, weights_only=True)
        return done[how]

    return get


@pytest.mark.parametrize("how", ["late", pytest.param("early", marks=pytest.mark.slow)])
@pytest.mark.parametrize("name", MODELS)
def test_models_of_transformers_run_on_the_cpu(results, name, how):
    """Loss, logits (chunked and short form), gradients and greedy decoding equal transformers' own torch code."""
    wanted, got = results("torch")[name], results(how)[name]
    assert isinstance(wanted, dict), wanted
    assert isinstance(got, dict), got
    assert set(got) == set(wanted)
    assert torch.equal(got.pop("generated"), wanted["generated"])
    least = 0.01 * max(float(value.norm()) for key, value in wanted.items() if key.startswith("gradient"))
    for key, value in got.items():
        size = wanted[key].norm().clamp_min(least if key.startswith("gradient") else 0.0)
        assert (value - wanted[key]).norm() / size < 1e-4, key
