"""The self-check before a run on CUDA, with the CPU in the part of the device: right kernels pass, wrong ones are refused."""

import json
from types import SimpleNamespace

import pytest
import torch
from models_helper import LRM, config

pytest.importorskip("triton")
pytest.importorskip("fla", reason="flash-linear-attention is not installed")

from selectivbench_hf import kernels, results, training
from selectivbench_hf.errors import KernelMismatch
from selectivbench_hf.kernels import selfcheck
from selectivbench_hf.kernels.bindings import gla as binding
from selectivbench_hf.runs import TrainingFailed


@pytest.fixture(autouse=True)
def _enabled():
    kernels.enable()


@pytest.mark.parametrize("mixer", LRM)
def test_right_kernels_pass(mixer):
    """bf16 against float32: what rounding alone does lies within the bounds, for every mixer."""
    state = torch.get_rng_state()
    found = selfcheck.check_kernels(config(mixer), "cpu", "bf16")
    assert found["status"] == "passed" and found["kernels_computed_in"] == "bf16"
    assert 0 < found["largest_output_error"] < selfcheck.BOUNDS["bf16"]["output"]
    assert 0 < found["largest_gradient_error"] < selfcheck.BOUNDS["bf16"]["gradient"]
    assert torch.equal(state, torch.get_rng_state())
    schema = results.schema()["properties"]["self_check"]
    assert set(found) <= set(schema["properties"])
    jsonschema = pytest.importorskip("jsonschema")
    jsonschema.validate(found, schema)


def test_equal_kernels_have_no_error():
    found = selfcheck.check_kernels(config("gla"), "cpu", "fp32")
    assert found["largest_output_error"] == found["largest_gradient_error"] == 0
    assert found["kernels_computed_in"] == "fp32" and found["steps"] == [48, 160]
    assert "largest_gradient_error" not in selfcheck.check_kernels(config("gla"), "cpu", train=False)
    assert "as the CPU's on cpu" in selfcheck.told(found)


def wrong_on_the_device(monkeypatch, spoil):
    """Let GLA's kernel be spoiled in every first of two runs, which is the device's."""
    runs, inner = [], selfcheck._run

    def run(*arguments):
        runs.append(arguments)
        return inner(*arguments)

    def gla(*arguments):
        return (spoil if len(runs) % 2 else lambda out, state: (out, state))(*right(*arguments))

    right = binding.gla
    monkeypatch.setattr(selfcheck, "_run", run)
    monkeypatch.setattr(binding, "gla", gla)
    return runs


class WrongGradient(torch.autograd.Function):
    """The identity with a gradient that is 10 % too large."""

    @staticmethod
    def forward(ctx, x):
        return x.clone()

    @staticmethod
    def backward(ctx, gradient):
        return 1.1 * gradient


@pytest.mark.parametrize(
    ("spoil", "what"),
    [
        (lambda out, state: (out * torch.linspace(1, 1.2, out.shape[-1]), state), "output"),
        (lambda out, state: (out + float("nan"), state), "output"),
        (lambda out, state: (WrongGradient.apply(out), state), "gradient of"),
        (lambda out, state: (torch.cat((out[:, :128], out[:, 128:].roll(1, 1)), 1), state), "output"),
    ],
    ids=["output", "nan", "gradient", "chunks"],
)
def test_wrong_kernels_are_refused(monkeypatch, spoil, what):
    runs = wrong_on_the_device(monkeypatch, spoil)
    with pytest.raises(
        KernelMismatch, match=f"'gla' are wrong on cpu: the {what}.*at most.*torch .*triton .*fla-core"
    ):
        selfcheck.check_kernels(config("gla"), "cpu", "fp32")
    assert {arguments[2] for arguments in runs} == {"fp32"}


def test_attention_has_nothing_to_check():
    assert selfcheck.check_kernels(config("transformer"), "cpu")["status"] == "not needed"


def test_what_cannot_be_checked_is_refused(monkeypatch):
    def refuse():
        raise RuntimeError("the CPU kernels are tested with fla-core 0.6.0")

    monkeypatch.setattr(selfcheck, "enable", refuse)
    with pytest.raises(KernelMismatch, match="cannot be compared.*tested with fla-core.*--self_check false"):
        selfcheck.check_kernels(config("gla"), "cpu")


def run_on_cuda(**arguments):
    """What training._Run.check_kernels reads, with a device that says it is CUDA."""
    said = []
    run = SimpleNamespace(
        device=torch.device("cuda"),
        own_model=True,
        model=SimpleNamespace(config=config("gla")),
        accelerator=SimpleNamespace(mixed_precision="bf16", num_processes=1),
        args=training.TrainingArguments(**arguments),
        self_check=None,
        say=said.append,
    )
    return run, said


def test_a_run_records_what_was_found(monkeypatch):
    monkeypatch.setattr(
        selfcheck, "check_kernels", lambda config, device, precision: {"status": "not needed", "why": precision}
    )
    run, said = run_on_cuda()
    training._Run.check_kernels(run)
    assert run.self_check == {"status": "not needed", "why": "bf16"} and len(said) == 1
    run, said = run_on_cuda(self_check=False)
    training._Run.check_kernels(run)
    assert run.self_check["status"] == "skipped" and "not checked" in said[0]


def test_a_run_does_not_train_on_wrong_kernels(monkeypatch):
    def wrong(*_):
        raise KernelMismatch("the kernels are wrong")

    monkeypatch.setattr(selfcheck, "check_kernels", wrong)
    run, _ = run_on_cuda()
    with pytest.raises(TrainingFailed, match="the kernels are wrong"):
        training._Run.check_kernels(run)
    assert run.self_check == {"status": "failed", "why": "the kernels are wrong"}


def test_cpu_runs_check_nothing(tmp_path):
    result = training.train(
        "lite_noisy_gaps", "gla", hidden_size=32, num_hidden_layers=1, max_steps=1, per_device_train_batch_size=2,
        num_train=8, num_validation=2, num_test=2, num_items=4, eval_splits="none", output_dir=str(tmp_path / "run"),
    )  # fmt: skip
    record = json.loads((tmp_path / "run" / "results.jsonl").read_text())
    assert record["self_check"] is None and result.record["self_check"] is None
    assert record["arguments"]["self_check"] is True
