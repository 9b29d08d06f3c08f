"""docs/adding_a_mixer.md, run as it stands: a toy mixer from outside the package, and the same as a line of the table."""

import json
import os
import re
import shlex
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from models_helper import ids, model

from selectivbench_hf import models
from selectivbench_hf.errors import InputError
from selectivbench_hf.models import MIXERS, mixers, taxonomy
from selectivbench_hf.models.cache import DecodingCache

ROOT = Path(__file__).parent.parent
TEXT = (ROOT / "docs/adding_a_mixer.md").read_text(encoding="utf-8")
TOY, LINE = re.findall(r"```python\n(.*?)```", TEXT, re.S)
TRAIN, TABLE = re.findall(r"```sh\n(.*?)```", TEXT, re.S)


@pytest.fixture
def toy(tmp_path, monkeypatch):
    (tmp_path / "toy.py").write_text(TOY)
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.delitem(sys.modules, "toy", raising=False)
    yield tmp_path
    sys.modules.pop("toy", None)


@pytest.fixture
def line(toy, monkeypatch):
    found = {}
    exec(LINE, found)
    monkeypatch.setitem(MIXERS, "moving_average", found["LINE"])
    return found["LINE"]


def command(text, folder):
    words = shlex.split(text)
    assert words[0] == "python"
    words = [sys.executable, *(str(ROOT / w) if w == "train.py" else w for w in words[1:])]
    env = {**os.environ, "PYTHONPATH": f"{folder}{os.pathsep}{ROOT}", "ACCELERATE_USE_CPU": "1", "COLUMNS": "100"}
    done = subprocess.run(words, cwd=folder, env=env, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr[-3000:]
    return done


def test_the_commands_from_another_folder(toy):
    command(TRAIN, toy)
    (record,) = [json.loads(text) for text in (toy / "runs/toy/results.jsonl").read_text().splitlines()]
    assert record["status"] == "finished" and record["training"]["steps"] == 10
    assert record["model"]["name"] == "toy:build" and record["model"]["kernel_backend"] == "module"
    assert record["model"]["state_size"] == 32
    assert record["arguments"]["mixer_kwargs"] == {"initial_decay": 0.8}
    assert set(record["scores"]) == {"validation", "test"}
    done = command(TABLE, toy)
    assert re.search(r"^toy:build +- +- +- +32 +2,080 ", done.stdout, re.M), done.stdout


def test_it_learns_and_is_saved(toy, tmp_path):
    net = model("toy:build", mixer_kwargs={"initial_decay": 0.5}).train()
    optimizer = torch.optim.Adam(net.parameters(), 1e-2)
    before = {name: value.clone() for name, value in net.named_parameters()}
    x, losses = ids(), []
    labels = x % 7
    for _ in range(8):
        loss = net(input_ids=x, labels=labels).loss
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    assert losses[-1] < losses[0]
    assert all(not torch.equal(value, before[name]) for name, value in net.named_parameters())
    net.eval().save_pretrained(tmp_path / "saved")
    again = models.SelectivBenchForStateClassification.from_pretrained(tmp_path / "saved")
    assert torch.equal(again(input_ids=x).logits, net(input_ids=x).logits)


def pieces(net, lengths):
    cache, out = DecodingCache(), []
    with torch.no_grad():
        for piece in ids().split(lengths, 1):
            out.append(net(input_ids=piece, cache=cache, use_cache=True).logits)
    return torch.cat(out, 1), cache


@pytest.mark.parametrize("name", ["toy:build", "moving_average"])
def test_it_decodes_through_the_cache(name, line):
    net = model(name)
    with torch.no_grad():
        whole = net(input_ids=ids()).logits
    for lengths in ([1, 96], [60, 37], [1] * 97):
        out, cache = pieces(net, lengths)
        assert torch.allclose(out, whole, atol=1e-5)
        assert cache.get_seq_length() == 97
    assert models.state_size(net.config) == 64


def test_the_line_of_the_table(line):
    models.check_mixer("moving_average", 33, None, {"initial_decay": 0.5})
    with pytest.raises(InputError, match="initial_decay is 2; it must be a number above 0 and below 1"):
        models.check_mixer("moving_average", 32, None, {"initial_decay": 2})
    with pytest.raises(InputError, match="did you mean 'initial_decay'"):
        models.check_mixer("moving_average", 32, None, {"initial_dekay": 0.5})
    assert "moving_average" in mixers.mixer_names()
    row = taxonomy.describe("moving_average", 32)
    assert row["problem"] is None and row["state_size"] == 32 and row["layer_parameters"] == 2 * 32 * 32 + 32
    assert (row["decay"], row["write"], row["mixing"]) == ("constant", "additive", "none")
    assert row["layer_train_flops"] == 6 * 2 * 32 * 32 and row["flops_note"].startswith("products with weights only")
    found = models.hidden_size_for("moving_average", state_size=100, num_hidden_layers=2)
    assert found.hidden_size == 50 and found.deviation == 0


# ---------------------------------------------------------------- caches that cannot be right

BROKEN = {
    "forgets": ("past_key_values.update(recurrent_state=state,", "past_key_values.update(recurrent_state=state * 0,"),
    "miscounts": ("offset=x.shape[1])", "offset=1)"),
    "reads wrong": ('["recurrent_state"]', '["recurrent"]'),
}
SAID = {
    "forgets": "a sequence in pieces gives something else than the whole at once",
    "miscounts": "after 32 steps its cache says 1: call past_key_values.update",
    "reads wrong": "fails on a piece of 31 steps with it: KeyError",
}


@pytest.mark.parametrize("fault", BROKEN)
def test_a_cache_that_is_wrong_is_refused_when_the_model_is_made(toy, fault):
    text = TOY.replace(*BROKEN[fault])
    assert text != TOY
    (toy / "toy.py").write_text(text)
    with pytest.raises(InputError, match=SAID[fault]) as caught:
        model("toy:build")
    assert "\n" not in str(caught.value) and "'toy:build'" in str(caught.value)


def test_without_a_cache_only_whole_sequences(toy):
    text = TOY.replace("def forward(self, x, past_key_values=None, use_cache=False):", "def forward(self, x):")
    text = text.replace("        values, decay =", "        past_key_values = None\n        values, decay =")
    (toy / "toy.py").write_text(text)
    net = model("toy:build")
    with pytest.raises(InputError, match="takes no past_key_values: give the whole sequence at once"):
        net(input_ids=ids(), use_cache=True)
    assert models.state_size(net.config) is None
    row = taxonomy.describe("toy:build", 32, count=False)
    assert row["state_size"] is row["state_growth"] is row["problem"] is None


def test_a_state_that_grows_has_no_size(toy):
    (toy / "toy.py").write_text(
        TOY.replace("past_key_values.update(", "past_key_values.update(attn_state=(values,), ")
    )
    assert models.state_size(model("toy:build").config) is None
    assert taxonomy.describe("toy:build", 32, count=False)["state_growth"] == 32
