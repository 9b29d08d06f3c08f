"""Training as a user starts it: in processes of their own, two at a time, killed, asked to stop."""

import json
import os
import re
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent
RUN = [
    *(
        "--task",
        "lite_noisy_gaps",
        "--num_train",
        "44",
        "--num_validation",
        "7",
        "--num_test",
        "5",
        "--num_items",
        "6",
        "--test_gaps",
        "10",
        "1",
    ),
    *(
        "--mixer",
        "transformer",
        "--hidden_size",
        "16",
        "--num_hidden_layers",
        "1",
        "--eval_steps",
        "4",
        "--save_steps",
        "4",
    ),
    *("--logging_steps", "1", "--max_steps", "8", "--per_device_eval_batch_size", "2"),
]
LAUNCH = [sys.executable, "-m", "accelerate.commands.launch"]


def environment(**more):
    env = {k: v for k, v in os.environ.items() if not k.startswith(("ACCELERATE_", "TORCHELASTIC", "OMP_"))}
    return {
        **env,
        "PYTHONPATH": os.pathsep.join([str(ROOT), os.environ.get("PYTHONPATH", "")]),
        "OMP_NUM_THREADS": "1",
        **more,
    }


def start(command, **more):
    return subprocess.Popen(
        list(map(str, command)),
        env=environment(**more),
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        cwd="/",
    )


def run(command, code=0, **more):
    process = start(command, **more)
    out, err = process.communicate(timeout=300)
    assert process.returncode == code, err[-3000:]
    return out, err


def one(folder, *more):
    return [sys.executable, ROOT / "train.py", *RUN, "--output_dir", folder, *more]


def two(folder, *more):
    """The README's line for two CPU processes, on a free port."""
    with socket.socket() as s:
        s.bind(("127.0.0.1", 0))
        port = s.getsockname()[1]
    launch = [*LAUNCH, "--multi_gpu", "--num_processes", 2, "--num_machines", 1, "--main_process_port", port]
    return [*launch, ROOT / "train.py", *RUN, "--output_dir", folder, *more]


def record(folder):
    return json.loads((folder / "results.jsonl").read_text().splitlines()[-1])


def weights(folder, name="last"):
    from safetensors.numpy import load_file

    return load_file(folder / name / "model.safetensors")


def same(a, b):
    return a.keys() == b.keys() and all((a[k] == b[k]).all() for k in a)


def counts(folder):
    names = ("correct", "correct_first", "correct_last", "total", "sequences", "steps")
    return {split: [s[n] for n in names] for split, s in record(folder)["scores"].items()}


def wait_for(path, process, seconds=120):
    end = time.time() + seconds
    while not path.exists():
        assert process.poll() is None and time.time() < end, process.communicate()[1][-2000:]
        time.sleep(0.02)


def children(pid):
    found = []
    for entry in Path("/proc").glob("[0-9]*"):
        try:
            if int(re.search(r"^PPid:\s+(\d+)", (entry / "status").read_text(), re.M)[1]) == pid:
                found.append(int(entry.name))
        except (OSError, TypeError):
            continue
    return found


def gone(pid, seconds=60):
    end = time.time() + seconds
    while time.time() < end:
        try:
            if "State:\tZ" in Path(f"/proc/{pid}/status").read_text():
                return True
        except OSError:
            return True
        time.sleep(0.1)
    return False


def test_help_is_quick_and_loads_nothing_heavy(python):
    code = "import sys\nfrom selectivbench_hf.training import main\ntry:\n    main(['--help'])\nexcept SystemExit as e:\n    assert not e.code\n"
    done = python(
        "-c", code + "print('torch' in sys.modules, 'transformers' in sys.modules, 'datasets' in sys.modules)"
    )
    assert done.returncode == 0 and done.stdout.split()[-3:] == ["False"] * 3, done.stderr
    for flag in ("--learning_rate", "--grammar_seed", "--mixer_kwargs", "default 64", "32 % of the steps"):
        assert flag in " ".join(done.stdout.split())


def test_the_installed_door_under_accelerate():
    out, _ = run([*LAUNCH, "--cpu", "-m", "selectivbench_hf.training", "--help"])
    assert "--num_train" in out


@pytest.mark.parametrize(
    ("argv", "sentence"),
    [
        (["--hiden_size", "3"], "unknown flag '--hiden_size'; did you mean '--hidden_size'"),
        (["--mixer", "glaa"], "unknown mixer 'glaa'; did you mean 'gla'"),
        (["--task", "te3_noisy"], "unknown task 'te3_noisy'; did you mean 'te3_noisy_gaps'"),
        (["--eval_splits", "test_gap_7"], "unknown split 'test_gap_7'"),
        (["--config", "/nowhere.yaml"], "cannot read the configuration file"),
        (
            ["--num_processes", "2"],
            "--num_processes asks for 2 processes but 1 runs; on CPUs two processes start with: ACCELERATE_USE_CPU=1",
        ),
    ],
)
def test_bad_input_is_one_sentence_and_code_2(tmp_path, argv, sentence):
    _, err = run(one(tmp_path / "run", *argv), code=2)
    assert sentence in err and "Traceback" not in err
    assert not (tmp_path / "run").exists()


def test_one_process_where_two_were_asked_for_is_an_error(tmp_path):
    _, err = run(
        [*LAUNCH, "--cpu", "--num_processes", 2, ROOT / "train.py", *RUN, "--output_dir", tmp_path / "run"], code=1
    )
    assert "accelerate launch --num_processes asks for 2 processes but 1 runs" in err
    _, err = run(one(tmp_path / "run"), code=2, WORLD_SIZE="2", RANK="0", LOCAL_RANK="-1")
    assert "asks for 2 processes but 1 runs" in err or "2 processes" in err


def test_sigkill_then_resume_is_exact(tmp_path):
    whole = start(one(tmp_path / "whole", "--max_steps", 60))
    process = start(one(tmp_path / "cut", "--max_steps", 60))
    wait_for(tmp_path / "cut/checkpoints/step-00000012", process)
    process.kill()
    process.wait()
    assert not (tmp_path / "cut/results.jsonl").exists()
    whole.communicate(timeout=120)
    run(one(tmp_path / "cut", "--max_steps", 60, "--resume"))
    assert same(weights(tmp_path / "whole"), weights(tmp_path / "cut"))
    assert counts(tmp_path / "whole") == counts(tmp_path / "cut")
    assert record(tmp_path / "cut")["training"]["resumes"] == 1 and record(tmp_path / "cut")["training"]["bit_exact"]


@pytest.mark.parametrize(("number", "code"), [(signal.SIGTERM, 143), (signal.SIGINT, 130)])
def test_a_signal_saves_and_exits(tmp_path, number, code):
    process = start(one(tmp_path / "run", "--max_steps", 100_000, "--save_steps", 50_000, "--eval_steps", 50_000))
    wait_for(tmp_path / "run/log.jsonl", process)
    process.send_signal(number)
    _, err = process.communicate(timeout=60)
    assert process.returncode == code, err[-2000:]
    stopped = record(tmp_path / "run")
    assert stopped["status"] == "interrupted" and signal.Signals(number).name in stopped["reason"]
    step = stopped["training"]["steps"]
    assert (tmp_path / f"run/checkpoints/step-{step:08d}").is_dir() and f"saved step {step} of 100000" in err


def test_the_launchers_death_stops_its_child(tmp_path):
    """accelerate launch dies on SIGTERM and leaves its child behind."""
    launch = [
        *LAUNCH,
        "--cpu",
        "--num_processes",
        1,
        "--mixed_precision",
        "bf16",
        ROOT / "train.py",
        *RUN,
        "--output_dir",
        tmp_path / "run",
    ]
    process = start([*launch, "--max_steps", 100_000, "--save_steps", 50_000, "--eval_steps", 50_000])
    wait_for(tmp_path / "run/log.jsonl", process)
    (child,) = children(process.pid)
    process.terminate()
    process.wait(timeout=30)
    assert gone(child)
    stopped = record(tmp_path / "run")
    assert stopped["status"] == "interrupted" and "launcher" in stopped["reason"]
    assert (
        stopped["training"]["precision"] == "bf16 autocast, fp32 weights"
    )  # what accelerate was told, as no flag of ours says more
    assert (tmp_path / f"run/checkpoints/step-{stopped['training']['steps']:08d}").is_dir()
    process.communicate()


# ---------------------------------------------------------------- two processes


@pytest.fixture(scope="module")
def pair(tmp_path_factory):
    """The same run without dropout in one process and in two (micro-batches of 8 and of 4; the last global batch has 4 rows)."""
    folder = tmp_path_factory.mktemp("pair")
    common = ("--dropout", "0", "--learning_rate", "0.01")
    run(one(folder / "one", *common, "--per_device_train_batch_size", 8))
    run(two(folder / "two", *common, "--per_device_train_batch_size", 4), ACCELERATE_USE_CPU="1")
    return folder


def test_two_processes_learn_what_one_learns(pair):
    a, b = record(pair / "one"), record(pair / "two")
    assert (
        (a["training"]["processes"], b["training"]["processes"])
        == (1, 2)
        == (a["hardware"]["processes"], b["hardware"]["processes"])
    )
    assert a["training"]["global_batch"] == b["training"]["global_batch"] == 8 and b["training"]["micro_batch"] == 4
    one_, two_ = weights(pair / "one"), weights(pair / "two")
    assert max(abs(one_[k] - two_[k]).max() for k in one_) < 1e-4
    logs = [[json.loads(line) for line in (pair / n / "log.jsonl").read_text().splitlines()] for n in ("one", "two")]
    for x, y in zip(*logs, strict=True):
        assert x["step"] == y["step"] and x.get("learning_rate") == y.get("learning_rate")
        assert x.get("loss") == pytest.approx(y.get("loss"), abs=1e-5)


@pytest.mark.parametrize("processes", [2, pytest.param(3, marks=pytest.mark.slow)])
def test_processes_count_what_one_counts(pair, processes, tmp_path):
    """7 and 5 sequences in batches of 2: a last partial batch, and more batches on one process than on the other."""
    command = [
        *LAUNCH,
        "--multi_gpu",
        "--num_processes",
        processes,
        "--num_machines",
        1,
        "--main_process_port",
        free_port(),
        "-m",
    ]
    more = ["--json", "--detail", "--output", tmp_path / "finer"]
    out, err = run([*command, "selectivbench_hf.evaluation", pair / "one", *more], ACCELERATE_USE_CPU="1")
    assert "equal to the record to the last count on 3 splits" in err and f"{processes} process(es)" in err
    rows = json.loads(out)
    assert {r["name"]: r["loss_sum"] for r in rows} == {
        s: v["loss_sum"] for s, v in record(pair / "one")["scores"].items()
    }
    one, _ = run([sys.executable, "-m", "selectivbench_hf.evaluation", pair / "one", "--json", "--detail"])
    for mine, theirs in zip(json.loads(one), rows, strict=True):
        for key in ("sequences_right", "interval", "detail"):
            assert mine[key] == theirs[key]
    files = [json.loads((f / "detail.json").read_text())["splits"] for f in (pair / "one", tmp_path / "finer")]
    assert [s["detail"] for s in files[0].values()] == [s["detail"] for s in files[1].values()]


def free_port():
    with socket.socket() as s:
        s.bind(("127.0.0.1", 0))
        return s.getsockname()[1]


def test_two_processes_resume_exactly_after_sigkill(tmp_path):
    """With dropout: each process has a random state of its own."""
    run(two(tmp_path / "whole", "--max_steps", 40), ACCELERATE_USE_CPU="1")
    process = start(two(tmp_path / "cut", "--max_steps", 40), ACCELERATE_USE_CPU="1")
    wait_for(tmp_path / "cut/checkpoints/step-00000012", process)
    workers = children(process.pid)
    for pid in (*workers, process.pid):
        os.kill(pid, signal.SIGKILL)
    process.communicate()
    run(two(tmp_path / "cut", "--max_steps", 40, "--resume"), ACCELERATE_USE_CPU="1")
    assert same(weights(tmp_path / "whole"), weights(tmp_path / "cut"))
    assert counts(tmp_path / "whole") == counts(tmp_path / "cut") and record(tmp_path / "cut")["training"]["bit_exact"]


def test_two_processes_stop_together(tmp_path):
    process = start(
        two(tmp_path / "run", "--max_steps", 100_000, "--save_steps", 50_000, "--eval_steps", 50_000),
        ACCELERATE_USE_CPU="1",
    )
    wait_for(tmp_path / "run/log.jsonl", process)
    workers = children(process.pid)
    process.terminate()
    process.communicate(timeout=60)
    assert all(gone(pid) for pid in workers)
    stopped = record(tmp_path / "run")
    assert stopped["status"] == "interrupted"
    assert (tmp_path / f"run/checkpoints/step-{stopped['training']['steps']:08d}").is_dir()
    _, err = run(
        one(
            tmp_path / "run",
            "--max_steps",
            100_000,
            "--save_steps",
            50_000,
            "--eval_steps",
            50_000,
            "--resume",
            "--dropout",
            "0.1",
        ),
        code=2,
    )
    assert "dropout is 0.1 here and was 0.2" in err


def test_a_forked_child_can_be_ended_and_the_handlers_go():
    """A pool that is closed sends SIGTERM to its processes; one that only takes note of it would be waited for without end."""
    import multiprocessing

    from selectivbench_hf.launching import StopFlag

    before = signal.getsignal(signal.SIGTERM), signal.getsignal(signal.SIGINT)
    with StopFlag().watched() as stop:
        child = multiprocessing.get_context("fork").Process(target=time.sleep, args=(60,))
        child.start()
        time.sleep(0.3)
        child.terminate()
        child.join(20)
        assert child.exitcode == -signal.SIGTERM and stop.code == 0
        os.kill(os.getpid(), signal.SIGTERM)
        assert stop.code == 143
    assert (signal.getsignal(signal.SIGTERM), signal.getsignal(signal.SIGINT)) == before


OWN = """
import os, sys, torch, selectivbench_hf as sb
class Net(torch.nn.Module):
    def __init__(self, v, s):
        super().__init__()
        torch.manual_seed(1)
        self.norm, self.out = torch.nn.BatchNorm1d(v, momentum=0.9), torch.nn.Linear(v, s)
        self.register_buffer("calls", torch.zeros((), dtype=torch.bool), persistent=False)
    def forward(self, x):
        return self.out(self.norm(x.transpose(1, 2)).transpose(1, 2))
task = sb.get_task("lite_noisy_gaps", num_train=44, num_validation=9, num_test=9, num_items=6, test_gaps=[10, 1])
net = Net(task.num_symbols, task.num_states)
result = sb.train(task, net, max_steps=8, eval_steps=4, save_steps=4, per_device_train_batch_size=4, learning_rate=0.1,
                  per_device_eval_batch_size=2, output_dir=sys.argv[1])
import torch.distributed as dist
means = [None, None]
dist.all_gather_object(means, net.norm.running_mean.tolist())
assert means[0] == means[1]
dist.barrier()
dist.destroy_process_group()
threads = [open(f"/proc/self/task/{t}/comm").read().strip() for t in os.listdir("/proc/self/task")]
assert not any("gloo" in name for name in threads), threads  # at the interpreter's end they would abort it, once in thirty runs
"""


def test_running_statistics_follow_process_0(tmp_path):
    """BatchNorm sees other rows on each process; the recorded score is that of the saved model, in one process or two."""
    (tmp_path / "own.py").write_text(OWN)
    command = [*LAUNCH, "--multi_gpu", "--num_processes", 2, "--num_machines", 1, "--main_process_port", free_port()]
    _, err = run([*command, tmp_path / "own.py", tmp_path / "run"], ACCELERATE_USE_CPU="1")
    assert "follow process 0" in err
    kept = record(tmp_path / "run")
    assert any("follow process 0" in note for note in kept["training"]["notes"])
    import torch

    import selectivbench_hf as sb
    from selectivbench_hf.evaluation import evaluate

    space = {}
    exec(OWN.split("task =")[0], space)
    task = sb.get_task(str(tmp_path / "run/task.json"))
    net = space["Net"](task.num_symbols, task.num_states)
    state = weights(tmp_path / "run", kept["evaluation"]["checkpoint"])
    net.load_state_dict({k: torch.from_numpy(v) for k, v in state.items()})
    scores = evaluate(net, task, [*kept["scores"]], batch_size=2)
    assert {s: v["loss_sum"] for s, v in scores.items()} == {s: v["loss_sum"] for s, v in kept["scores"].items()}


FAULT = """
import sys, accelerate
from selectivbench_hf.launching import on_main
a = accelerate.Accelerator()
try:
    on_main(a, lambda: {}["no such key"])
except Exception as error:
    sys.stdout.write(f"{a.process_index} {type(error).__name__} {error}\\n")  # at once: two processes share it
    sys.stdout.flush()
a.wait_for_everyone()
a.end_training()
"""


def test_any_fault_of_process_0_reaches_the_others(tmp_path):
    (tmp_path / "fault.py").write_text(FAULT)
    command = [*LAUNCH, "--multi_gpu", "--num_processes", 2, "--num_machines", 1, "--main_process_port", free_port()]
    out, _ = run([*command, tmp_path / "fault.py"], ACCELERATE_USE_CPU="1")
    assert "0 KeyError" in out and "1 RuntimeError process 0 failed: KeyError: 'no such key'" in out
