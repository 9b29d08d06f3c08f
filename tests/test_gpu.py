"""On a CUDA machine (`make test-gpu`): fla's own kernels against ours, gradients too, whole runs in fp32 and bf16, and speed."""

import json
import statistics
import time
from pathlib import Path

import pytest
import torch
from models_helper import ALL, SMALL, config

from selectivbench_hf import kernels
from selectivbench_hf.kernels import selfcheck
from selectivbench_hf.kernels.dispatch import first_tensor_on_cpu
from selectivbench_hf.models import MIXERS, SelectivBenchForStateClassification, modeling

pytestmark = pytest.mark.gpu
DEVICE = "cuda"
FLA = [name for name in ALL if MIXERS[name].needs_fla]
RUNS = (
    "--task",
    "lite_noisy_gaps",
    "--num_train",
    "64",
    "--num_validation",
    "8",
    "--num_test",
    "8",
    "--num_items",
    "10",
)
SIZES = ("--hidden_size", "64", "--num_hidden_layers", "2", "--max_steps", "5", "--per_device_train_batch_size", "8")
BENCHMARK = {"hidden_size": 256, "num_hidden_layers": 4, "num_symbols": 27, "num_states": 27, "mixer_kwargs": {}}
BATCH, STEPS = 16, 512  # of the timed training step


def device_config(mixer):
    """A model of width 64: heads of 16 are the smallest that Triton's matrix products take."""
    return config(mixer, hidden_size=64, num_heads=None)


@pytest.mark.parametrize("precision", ["fp32", "bf16"])
@pytest.mark.parametrize("mixer", FLA)
def test_layers_agree_with_the_cpu(mixer, precision):
    """Outputs and all gradients, at lengths of both forms, in training and evaluation."""
    found = selfcheck.check_kernels(device_config(mixer), DEVICE, precision)
    assert found["status"] == "passed", found
    print(mixer, precision, found)


def test_wrong_kernels_are_found(monkeypatch):
    kernels.enable()
    from fla.layers import gla

    right = gla.chunk_gla

    def spoiled(*arguments, **keywords):
        out, state = right(*arguments, **keywords)
        if first_tensor_on_cpu(*arguments, **keywords)[0]:
            return out, state
        return out * torch.linspace(1, 1.3, out.shape[-1], device=out.device, dtype=out.dtype), state

    monkeypatch.setattr(gla, "chunk_gla", spoiled)
    with pytest.raises(selfcheck.KernelMismatch, match="'gla' are wrong"):
        selfcheck.check_kernels(device_config("gla"), DEVICE, "fp32")


def gradients(mixer, device):
    """Loss and gradients of a small model on a fixed batch, on the CPU; float32 weights."""
    torch.manual_seed(0)
    settings = device_config(mixer)
    model = SelectivBenchForStateClassification(settings).to(device)
    assert all(p.dtype == torch.float32 for p in model.parameters())
    generator = torch.Generator().manual_seed(1)
    features = torch.randn(3, 120, settings.num_symbols, generator=generator).to(device)
    labels = torch.randint(0, settings.num_states, (3, 120), generator=generator).to(device)
    loss = model(input_features=features, labels=labels).loss
    loss.backward()
    return {"loss": loss.detach().cpu()} | {n: p.grad.cpu() for n, p in model.named_parameters() if p.grad is not None}


@pytest.mark.parametrize("mixer", ALL)
def test_models_agree_with_the_cpu(mixer):
    ours, theirs = gradients(mixer, "cpu"), gradients(mixer, DEVICE)
    assert set(ours) == set(theirs)
    assert torch.allclose(ours.pop("loss"), theirs.pop("loss"), rtol=1e-2)
    scale = max(float(g.norm()) for g in ours.values())
    assert max(float((ours[n] - theirs[n]).norm()) for n in ours) < 5e-2 * scale


@pytest.mark.parametrize("precision", ["no", "bf16"])
@pytest.mark.parametrize("mixer", ALL)
def test_a_run_trains_scores_and_is_scored_again(mixer, precision, tmp_path):
    from selectivbench_hf import evaluation
    from selectivbench_hf.training import main

    run = str(tmp_path / "run")
    given = ["--mixer", mixer, "--mixer_kwargs", json.dumps(SMALL.get(mixer, {})), "--mixed_precision", precision]
    assert main([*RUNS, *SIZES, *given, "--output_dir", run]) == 0
    record = json.loads((tmp_path / "run" / "results.jsonl").read_text().splitlines()[-1])
    assert record["status"] == "finished" and record["hardware"]["device"].startswith("cuda")
    assert record["self_check"]["status"] == ("passed" if mixer in FLA else "not needed")
    assert record["model"]["kernel_backend"] not in (None, "cpu-chunked")
    weights = _weights(Path(run) / "last")
    assert {value.dtype for value in weights.values() if value.is_floating_point()} == {torch.float32}
    assert evaluation.main([run]) == 0


def _weights(folder):
    from safetensors.torch import load_file

    return load_file(folder / "model.safetensors")


def bare_stack(model):
    """The same layers in a plain loop: what a user of fla alone would train. Shares the model's parameters."""

    def forward(features, labels):
        x, shared = model.encoder(features), {}
        for block in model.backbone:
            x = x + modeling._mixed(block.mixer, block.mixer_norm(x), None, shared)
            if block.mlp is not None:
                x = x + block.mlp(block.mlp_norm(x))
        logits = model.classifier(model.norm(x))
        return torch.nn.functional.cross_entropy(logits.float().flatten(0, 1), labels.flatten())

    return forward


def seconds_a_step(step, device, repeats=15):
    """Median seconds of `step()`, after a warm-up that compiles and tunes."""
    wait = torch.cuda.synchronize if torch.device(device).type == "cuda" else lambda: None
    times = []
    for repeat in range(repeats + 5):
        wait()
        start = time.perf_counter()
        step()
        wait()
        if repeat >= 5:
            times.append(time.perf_counter() - start)
    return statistics.median(times)


def step_ratio(mixer, device, batch=BATCH, steps=STEPS, repeats=15, **fields):
    """Time of a training step of our model / of the bare stack of its layers, in bf16 autocast with AdamW: the least of three."""
    torch.manual_seed(0)
    settings = config(mixer, **{**BENCHMARK, **fields})
    model = SelectivBenchForStateClassification(settings).to(device).train()
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4)
    features = torch.randn(batch, steps, settings.num_symbols, device=device)
    labels = torch.randint(0, settings.num_states, (batch, steps), device=device)
    bare = bare_stack(model)

    def training_step(loss_of):
        with torch.autocast(torch.device(device).type, torch.bfloat16):
            loss = loss_of()
        loss.backward()
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)

    def ratio():
        ours = seconds_a_step(
            lambda: training_step(lambda: model(input_features=features, labels=labels).loss), device, repeats
        )
        return ours / seconds_a_step(lambda: training_step(lambda: bare(features, labels)), device, repeats)

    return min(ratio() for _ in range(3))


@pytest.mark.parametrize("mixer", [name for name in FLA if not MIXERS[name].whole])
def test_a_training_step_costs_what_the_layers_cost(mixer):
    ratio = step_ratio(mixer, DEVICE)
    print(f"{mixer}: {ratio:.3f} x the bare stack of layers")
    assert ratio <= 1.05
