"""Runs that were damaged, stopped or asked for wrongly: what is told, what is kept, what is refused."""

import json
import os
import shutil

import pytest
import test_training
import torch
from test_training import First, flags, harm_checkpoint, same, stopped_after, tiny_run, tiny_task, weights

from selectivbench_hf import checkpointing, evaluation, results
from selectivbench_hf.errors import InputError
from selectivbench_hf.training import main, train

one_thread = test_training.one_thread


def test_a_broken_newest_checkpoint_does_not_push_out_the_new_ones(tmp_path, capfd):
    tiny_run(tmp_path / "whole", save_steps=1)
    stopped_after(tmp_path / "cut", "transformer", 6, save_steps=1, save_total_limit=3)
    for path in checkpointing.listed(tmp_path / "cut/checkpoints")[:2]:  # 6 and 5; 4 is left
        harm_checkpoint(path, "flip")
    more = {"save_steps": 1, "save_total_limit": 2, "resume": True}
    checkpointing_save = checkpointing.save
    kept = []

    def save(folder, *args, **keywords):
        path = checkpointing_save(folder, *args, **keywords)
        kept.append([p.name for p in checkpointing.listed(folder)])
        assert path.is_dir()
        return path

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(checkpointing, "save", save)
        tiny_run(tmp_path / "cut", **more)
    assert kept[0] == ["step-00000005", "step-00000004"] and kept[-1] == ["step-00000008", "step-00000007"]
    said = capfd.readouterr().err
    assert "step-00000006 is kept as broken-step-00000006" in said
    assert (tmp_path / "cut/checkpoints/broken-step-00000005").is_dir()
    assert same(weights(tmp_path / "whole"), weights(tmp_path / "cut"))
