"""Saving and loading: equal to the bit in a new process, tables that are not saved included; a file that does not fit is an error."""

import pytest
import torch
from models_helper import ALL, ids, model
from safetensors.torch import load_file, save_file

from selectivbench_hf.errors import InputError
from selectivbench_hf.models import SelectivBenchForStateClassification, parameter_groups

pytest.importorskip("triton")
pytest.importorskip("fla")

CASES = [*((mixer, {}) for mixer in ALL), ("transformer", {"block": "paper"}), ("gla", {"block": "paper"})]
CASES += [("models_helper:build_tabled", {"mixer_kwargs": {"power": 0.5}})]

LOADER = """
import sys, torch
sys.path.insert(0, {tests!r})
import selectivbench_hf.models
from transformers import AutoModelForTokenClassification
from selectivbench_hf.models import SelectivBenchForStateClassification, parameter_groups
torch.set_num_threads(1)
torch.manual_seed(99)
for folder in sys.argv[1:]:
    wanted = torch.load(folder + "/wanted.pt")
    for load in (SelectivBenchForStateClassification, AutoModelForTokenClassification):
        for dtype in (torch.float32, torch.bfloat16):
            net, info = load.from_pretrained(folder, dtype=dtype, output_loading_info=True)
            assert type(net) is SelectivBenchForStateClassification and not net.training
            assert not any(info[k] for k in ("missing_keys", "unexpected_keys", "mismatched_keys")), info
            for kind in ("parameters", "buffers"):
                found = dict(getattr(net, "named_" + kind)())
                assert set(found) == set(wanted[kind]), (folder, kind)
                for name, value in wanted[kind].items():
                    kept = found[name].dtype == value.dtype  # buffers, and what fla makes float32 by name (A_log)
                    assert kept or found[name].dtype == dtype, (folder, name)
                    assert torch.equal(found[name], value.to(found[name].dtype)), (folder, name)
            groups = {{g["name"]: g["names"] for g in parameter_groups(net, 0.1)}}
            assert groups == wanted["groups"], folder
            with torch.no_grad():
                logits = net(input_ids=wanted["ids"]).logits
            assert torch.equal(logits, wanted["logits", str(dtype)]), (folder, dtype)
print("all equal")
"""


def test_a_new_process_loads_the_same_model(tmp_path, python):
    torch.manual_seed(0)
    folders = []
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    for index, (mixer, fields) in enumerate(CASES):
        folder = tmp_path / str(index)
        net = model(mixer, seed=index, **fields)
        net.save_pretrained(folder)
        wanted = {"ids": ids(), "parameters": dict(net.named_parameters()), "buffers": dict(net.named_buffers())}
        wanted = {
            k: {n: t.detach().clone() for n, t in v.items()} if isinstance(v, dict) else v for k, v in wanted.items()
        }
        wanted["groups"] = {g["name"]: g["names"] for g in parameter_groups(net, 0.1)}
        with torch.no_grad():
            wanted["logits", "torch.float32"] = net(input_ids=ids()).logits
            half = SelectivBenchForStateClassification.from_pretrained(folder, dtype=torch.bfloat16)
            wanted["logits", "torch.bfloat16"] = half(input_ids=ids()).logits
        torch.save(wanted, folder / "wanted.pt")
        folders.append(folder)
    torch.set_num_threads(threads)
    import os

    tests = os.path.dirname(__file__)
    done = python("-c", LOADER.format(tests=tests), *folders)
    assert done.stdout.strip().endswith("all equal"), done.stdout + done.stderr


@pytest.mark.parametrize("harm", ["missing", "extra", "reshaped"])
def test_a_file_that_does_not_fit_is_refused(tmp_path, harm):
    model("gla").save_pretrained(tmp_path)
    file = tmp_path / "model.safetensors"
    tensors = load_file(file)
    key = "backbone.0.mixer.q_proj.weight"
    if harm == "missing":
        del tensors[key]
    elif harm == "extra":
        key = "backbone.9.weight"
        tensors[key] = torch.zeros(2)
    else:
        tensors[key] = torch.zeros(3, 3)
    save_file(tensors, file, {"format": "pt"})
    with pytest.raises(
        (InputError, RuntimeError), match=key.replace(".", r"\.") if harm != "reshaped" else "mismatch|size"
    ):
        SelectivBenchForStateClassification.from_pretrained(tmp_path)
    with pytest.raises((InputError, RuntimeError)):
        SelectivBenchForStateClassification.from_pretrained(tmp_path, ignore_mismatched_sizes=True)


def test_dropout_and_shape_come_back(tmp_path):
    net = model("transformer", dropout=0.3, block="paper", num_heads=2, mixer_kwargs={"rope_theta": 500.0})
    net.save_pretrained(tmp_path)
    again = SelectivBenchForStateClassification.from_pretrained(tmp_path)
    assert (
        again.backbone[0].drop.p == 0.3 and again.backbone[1].mixer.rope_theta == 500.0 and again.config.num_heads == 2
    )
