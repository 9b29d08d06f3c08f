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
from selectivbench_hf.models import SelectivBenchForStateClassification, get_mixer, parameter_groups
get_mixer("models_helper:build_tabled")  # a saved configuration does not import it by itself
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
    for kwargs in ({}, {"ignore_mismatched_sizes": True}):
        with pytest.raises(InputError, match=key.replace(".", r"\.")) as caught:
            SelectivBenchForStateClassification.from_pretrained(tmp_path, **kwargs)
        assert "\n" not in str(caught.value) and repr(str(tmp_path)) in str(caught.value)
    if harm == "reshaped":
        assert "(3, 3) in the file, (16, 32) in the model" in str(caught.value)


def _cut(name, size):
    def harm(folder):
        (folder / name).write_bytes((folder / name).read_bytes()[:size])

    return harm


def _write(text):
    return lambda folder: (folder / "config.json").write_text(text)


def _change(**fields):
    def harm(folder):
        import json

        config = json.loads((folder / "config.json").read_text())
        (folder / "config.json").write_text(json.dumps({**config, **fields}))

    return harm


DAMAGES = [
    (_cut("model.safetensors", 1000), "weights file is damaged or cut off"),
    (_cut("model.safetensors", -1), "weights file is damaged or cut off"),
    (_cut("model.safetensors", 0), "weights file is damaged or cut off"),
    (lambda folder: (folder / "model.safetensors").unlink(), "model.safetensors"),
    (lambda folder: (folder / "config.json").unlink(), "has no config.json"),
    (_cut("config.json", 40), "not JSON"),
    (_write(""), "not JSON"),
    (_write("{}"), "no model type; 'selectivbench' is needed"),
    (_write("[]"), "holds list"),
    (_change(model_type="bert"), "model type 'bert'; 'selectivbench' is needed"),
    (_change(hidden_size=64), r"do not fit.*\(32, 32\) in the file, \(64, 64\) in the model"),
    (_change(hidden_size="wide"), "hidden_size"),
    (_change(hidden_size=-4), "hidden_size"),
    (_change(mixer="transfromer"), "did you mean 'transformer'"),
    (_change(mixer="gla", mixer_kwargs={}), "do not fit"),
    (_change(num_hidden_layers=1), "unexpected keys"),
    (_change(num_heads=0), "num_heads"),
    (_change(num_heads="x"), "num_heads"),
    (_change(mixer_kwargs=[1]), "mixer_kwargs"),
    (_change(mixer=None), "mixer"),
    (_change(hiden_size=3), "did you mean 'hidden_size'"),
]


@pytest.mark.parametrize("index", range(len(DAMAGES)))
def test_a_damaged_folder_is_refused_in_one_sentence(tmp_path, index, caplog):
    harm, text = DAMAGES[index]
    model("transformer").save_pretrained(tmp_path)
    harm(tmp_path)
    with pytest.raises(InputError, match=text) as caught:
        SelectivBenchForStateClassification.from_pretrained(tmp_path)
    assert "\n" not in str(caught.value) and repr(str(tmp_path)) in str(caught.value), str(caught.value)
    assert not caplog.records, caplog.records
    assert len(str(caught.value)) < 900


@pytest.mark.parametrize("where", ["/nowhere/at/all", "./nowhere", "a/b/c", 3, "owner-nobody/no-such-model"])
def test_a_place_without_a_model(where):
    kwargs = {"local_files_only": True} if where == "owner-nobody/no-such-model" else {}
    with pytest.raises(InputError) as caught:
        SelectivBenchForStateClassification.from_pretrained(where, **kwargs)
    assert "\n" not in str(caught.value)
    assert str(where) in str(caught.value) or where == 3


def test_dropout_and_shape_come_back(tmp_path):
    net = model("transformer", dropout=0.3, block="paper", num_heads=2, mixer_kwargs={"rope_theta": 500.0})
    net.save_pretrained(tmp_path)
    again = SelectivBenchForStateClassification.from_pretrained(tmp_path)
    assert (
        again.backbone[0].drop.p == 0.3 and again.backbone[1].mixer.rope_theta == 500.0 and again.config.num_heads == 2
    )
