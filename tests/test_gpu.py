"""On a CUDA machine (`make test-gpu`): fla's own kernels against ours, gradients too, and whole runs in fp32 and bf16."""

import json

import pytest

from selectivbench_hf import get_task, kernels
from selectivbench_hf.models.mixers import mixer_names

pytestmark = pytest.mark.gpu
TASK = get_task("lite_noisy_gaps", num_train=64, num_validation=8, num_test=8, num_items=10)


def _gradients(mixer, device):
    import torch

    from selectivbench_hf import SelectivBenchConfig, SelectivBenchForStateClassification
    from selectivbench_hf.features import make_batch

    torch.manual_seed(0)
    config = SelectivBenchConfig.for_task(TASK, mixer=mixer, hidden_size=64, num_hidden_layers=2, dropout=0.0)
    model = SelectivBenchForStateClassification(config).to(device)
    batch = make_batch(TASK, "train", [0, 1, 2], epoch=0, seed=0)
    features, labels = (torch.from_numpy(batch[k]).to(device) for k in ("input_features", "labels"))
    model(input_features=features, labels=labels).loss.backward()
    return {name: p.grad.cpu() for name, p in model.named_parameters() if p.grad is not None}


@pytest.mark.parametrize("mixer", mixer_names())
def test_gradients_agree_with_the_cpu(mixer):
    ours, theirs = _gradients(mixer, "cpu"), _gradients(mixer, "cuda")
    assert set(ours) == set(theirs)
    scale = max(float(g.norm()) for g in ours.values())
    worst = max(float((ours[n] - theirs[n]).norm()) for n in ours)
    assert worst < 1e-2 * scale  # tf32 products in the kernels


@pytest.mark.parametrize("precision", ["no", "bf16"])
@pytest.mark.parametrize("mixer", mixer_names())
def test_a_run_trains_scores_and_is_scored_again(mixer, precision, tmp_path):
    from selectivbench_hf import evaluation
    from selectivbench_hf.training import main

    sizes = ["--num_train", "64", "--num_validation", "8", "--num_test", "8", "--num_items", "10"]
    small = [
        "--hidden_size",
        "64",
        "--num_hidden_layers",
        "2",
        "--max_steps",
        "5",
        "--per_device_train_batch_size",
        "8",
    ]
    run = str(tmp_path / "run")
    assert (
        main(
            [
                "--task",
                "lite_noisy_gaps",
                *sizes,
                "--mixer",
                mixer,
                *small,
                "--mixed_precision",
                precision,
                "--output_dir",
                run,
            ]
        )
        == 0
    )
    record = json.loads((tmp_path / "run" / "results.jsonl").read_text().splitlines()[-1])
    assert record["status"] == "finished" and record["hardware"]["device"].startswith("cuda")
    assert record["model"]["kernel_backend"] == kernels.backend("cuda", mixer)
    assert evaluation.main([run]) == 0
