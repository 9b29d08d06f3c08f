"""How a training process was started, and how it is asked to stop.

Checks that as many processes run as were asked for (`accelerate launch --cpu --num_processes 2` starts one, silently), divides the CPU's
threads, and turns SIGTERM, Ctrl-C and the death of the launcher into one flag that the training loop reads between steps.
"""

import contextlib
import os
import signal
import threading
import time
from pathlib import Path

from .checkpointing import CheckpointError
from .errors import InputError

TWO_ON_CPU = "ACCELERATE_USE_CPU=1 accelerate launch --multi_gpu --num_processes {n} --num_machines 1 train.py ..."


def _proc(pid: int, name: str) -> list[str]:
    """NUL-separated strings of /proc/PID/name; empty where there is no /proc."""
    try:
        return Path(f"/proc/{pid}/{name}").read_bytes().decode(errors="replace").split("\0")
    except OSError:
        return []


def launcher() -> list[str]:
    """The command line of the accelerate or torchrun process that started this one; empty when started in any other way."""
    line = _proc(os.getppid(), "cmdline")
    head = " ".join(line[:6])
    starts = (
        "accelerate launch",
        "accelerate.commands",
        "accelerate-launch",
        "torchrun",
        "torch.distributed.run",
        "torch.distributed.launch",
    )
    return line if any(word in head for word in starts) else []


def _option(line: list[str], *names: str) -> str | None:
    for i, word in enumerate(line):
        if (
            word.endswith(".py")
            and i > 1
            and not line[i - 1].startswith("-")
            and "accelerate" not in word
            and "run" not in Path(word).stem
        ):
            break  # what follows belongs to the script
        for name in names:
            if word == name and i + 1 < len(line):
                return line[i + 1]
            if word.startswith(name + "="):
                return word.split("=", 1)[1]
    return None


def asked_processes() -> tuple[int | None, str]:
    """How many processes the launcher was asked for, and where that was said; (None, "") when nobody said."""
    if os.environ.get("WORLD_SIZE", "").isdigit():
        return int(os.environ["WORLD_SIZE"]), "WORLD_SIZE"
    line = launcher()
    if not line:
        return None, ""
    said = _option(line, "--num_processes", "--num-processes", "--nproc_per_node", "--nproc-per-node")
    if said and said.isdigit():
        return int(said), "accelerate launch --num_processes"
    try:
        from accelerate.commands.config.config_args import default_config_file, load_config_from_file

        file = _option(line, "--config_file", "--config-file") or (
            default_config_file if os.path.isfile(default_config_file) else None
        )
        if file:
            return int(load_config_from_file(file).num_processes), f"the accelerate configuration {file}"
    except Exception:  # a foreign or broken file is accelerate's to report
        pass
    return None, ""


def check_processes(running: int, expected: int | None = None) -> None:
    """InputError when fewer (or more) processes run than `expected` (our --num_processes) or than the launcher was asked for."""
    asked, where = (expected, "--num_processes") if expected is not None else asked_processes()
    if asked is not None and asked != running:
        raise InputError(
            f"{where} asks for {asked} processes but {running} run{'s' if running == 1 else ''}; on CPUs two processes start with: "
            + TWO_ON_CPU.format(n=max(asked, 2))
        )


def divide_threads(local_processes: int) -> int:
    """Give each process its share of the cores unless the user chose a number; returns torch's number of threads.

    Launchers set OMP_NUM_THREADS themselves (often to 1), so the user's choice is looked up in the launcher's own environment.
    """
    import torch

    line = launcher()
    chosen = "OMP_NUM_THREADS" in os.environ
    if line and chosen:
        environment = _proc(os.getppid(), "environ")
        chosen = (
            any(e.startswith("OMP_NUM_THREADS=") for e in environment)
            or _option(line, "--num_cpu_threads_per_process") is not None
        )
    if not chosen and (local_processes > 1 or line):
        cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
        torch.set_num_threads(max(1, cores // local_processes))
    return torch.get_num_threads()


def leave(accelerator, together: bool = True, close: bool = True) -> None:
    """End the work of several processes: `together` in step, and with `close` for good, in a command that is about to exit.

    Both keep a process from aborting at its exit: a gloo thread that still frees the tensors of the last collective when the interpreter ends
    asks for its lock and dies of it ("terminate called without an active exception"). Destroying the group waits for its threads; before
    that, a barrier lets nobody leave while others still talk.
    """
    if accelerator.num_processes > 1:
        import torch.distributed

        with contextlib.suppress(Exception):
            if together:
                torch.distributed.barrier()
            if close:
                torch.distributed.destroy_process_group()


class Stopped(Exception):
    """The run was asked to stop (exit code in `.code`: 143 for SIGTERM or the launcher's death, 130 for Ctrl-C)."""

    def __init__(self, code: int = 143, why: str = "SIGTERM"):
        super().__init__(why)
        self.code, self.why = code, why


class StopFlag:
    """`.code` is 0 until somebody asks the process to stop. Within `watched()` signals and the launcher's death set it."""

    def __init__(self):
        self.code, self.why = 0, ""

    def ask(self, code: int, why: str) -> None:
        if not self.code:
            self.code, self.why = code, why

    def check(self) -> None:
        if self.code:
            raise Stopped(self.code, self.why)

    @contextlib.contextmanager
    def watched(self):
        """Handlers for the block (main thread only) and, under a launcher, a thread that polls the parent's pid twice a second."""
        owner, before = os.getpid(), {}

        def on_signal(number, frame):
            if (
                os.getpid() != owner
            ):  # a forked child: whoever stops a pool of them waits for ever for one that only takes note
                signal.signal(number, signal.SIG_DFL)
                os.kill(os.getpid(), number)
                return
            if self.code and number == signal.SIGINT:
                raise KeyboardInterrupt  # the second Ctrl-C does not wait
            self.ask(128 + number, signal.Signals(number).name)

        if threading.current_thread() is threading.main_thread():
            before = {number: signal.signal(number, on_signal) for number in (signal.SIGTERM, signal.SIGINT)}
        if launcher():
            parent = os.getppid()

            def poll():
                while os.getppid() == parent:
                    time.sleep(0.5)
                self.ask(143, "death of the launcher")

            threading.Thread(target=poll, daemon=True, name="watch-launcher").start()
        try:
            yield self
        finally:
            for number, handler in before.items():
                signal.signal(number, handler if handler is not None else signal.SIG_DFL)


def new_accelerator(**keywords):
    """An Accelerator whose process group, where there are several processes, can be destroyed.

    The functions of torch.distributed.nn keep the group of the moment of their import as a default, for ever, and a group that outlives
    destroy_process_group has threads at the interpreter's end (see `leave`): so they are imported before there is one.
    """
    import torch.distributed

    if torch.distributed.is_available():
        import torch.distributed.nn
    from accelerate import Accelerator

    return Accelerator(**keywords)


def make_accelerator(args):
    """An Accelerator with the asked precision, plain data parallel only; checks the number of processes and divides the threads."""
    import importlib.util

    from accelerate.state import AcceleratorState

    if args.tracker != "none" and importlib.util.find_spec(args.tracker) is None:
        raise InputError(f"--tracker {args.tracker} needs the package {args.tracker}, which is not installed")
    kept = AcceleratorState._shared_state.get("_mixed_precision")
    if kept is not None and args.mixed_precision not in (None, kept):
        AcceleratorState._reset_state()  # an earlier run in this process had another precision
    tracker = {} if args.tracker == "none" else {"log_with": args.tracker, "project_dir": args.output_dir or "runs"}
    accelerator = new_accelerator(mixed_precision=args.mixed_precision, **tracker)
    if accelerator.mixed_precision not in ("no", "bf16"):
        raise InputError(
            f"mixed_precision {accelerator.mixed_precision} of the accelerate configuration is not supported; bf16 and no are"
        )
    kind = accelerator.distributed_type.value
    if kind not in ("NO", "MULTI_CPU", "MULTI_GPU"):
        raise InputError(
            f"the accelerate configuration asks for {kind}; these models train by plain data parallelism (MULTI_GPU, MULTI_CPU or one process)"
        )
    check_processes(accelerator.num_processes, args.num_processes)
    divide_threads(int(os.environ.get("LOCAL_WORLD_SIZE", 1)))
    return accelerator


class SharedBuffers:
    """A model's buffers under several processes: those that change in training (running statistics) follow process 0, step by step.

    Only process 0's are saved, so the others must not go ways of their own: every process then scores the model that is saved.
    """

    def __init__(self, model, processes: int):
        self.model = model if processes > 1 and next(model.buffers(), None) is not None else None
        self.seen = [b.detach().clone() for b in model.buffers()] if self.model is not None else []

    def share(self) -> int:
        """Send process 0's where they changed on some process since the last call; returns how many."""
        if self.model is None:
            return 0
        import torch
        from torch.distributed import all_reduce, broadcast

        buffers = list(self.model.buffers())
        # by content: batch norm's kernels write their statistics without counting up a tensor's version
        changed = [float(not torch.equal(a, b)) for a, b in zip(buffers, self.seen, strict=True)]
        told = torch.tensor(changed, dtype=torch.float32, device=buffers[0].device)
        all_reduce(told)
        some = [i for i, flag in enumerate(told.tolist()) if flag]
        for i in some:
            buffer = buffers[i]
            whole = buffer.detach().contiguous()
            broadcast(whole, 0)
            if whole.data_ptr() != buffer.data_ptr():
                buffer.data.copy_(whole)
            self.seen[i].copy_(whole)
        return len(some)


def on_main(accelerator, function):
    """Call `function` on the main process only; its value, or its error, reaches every process, so that none waits for ever."""
    out, fault = [None, None], None
    if accelerator.is_main_process:
        try:
            out[0] = function()
        except (InputError, CheckpointError) as error:
            out[1] = error
        except OSError as error:
            out[1] = CheckpointError(f"could not write the run folder: {error}")
        except Exception as error:  # a fault of ours: told in full where it happened, in words to the others
            if accelerator.num_processes == 1:
                raise
            fault, out[1] = error, RuntimeError(f"process 0 failed: {type(error).__name__}: {error}")
    if accelerator.num_processes > 1:
        from accelerate.utils import broadcast_object_list

        broadcast_object_list(out)
    if fault is not None:
        raise fault
    if out[1] is not None:
        raise out[1]
    return out[0]
