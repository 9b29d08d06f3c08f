"""Mamba's selective scan, in torch and compiled, against a plain float64 loop."""

import importlib.util
import subprocess
import sys
import threading
import time
import types

import pytest
import torch
from kernels_helper import GATES, STEPS, error, values_and_gradients

from selectivbench_hf import kernels
from selectivbench_hf.kernels import scan
from selectivbench_hf.kernels.reference_scan import selective_scan_loop

COMPILED = [
    False,
    pytest.param(True, marks=pytest.mark.skipif(not importlib.util.find_spec("numba"), reason="no numba")),
]


def inputs(steps, gate=-0.5, batch=2, width=5, states=3, seed=0):
    """u, dt, A, B, C and a state, float64; the decays' logarithms are between 0 and `gate`."""
    generator = torch.Generator().manual_seed(seed)

    def random(*shape):
        return torch.randn(*shape, generator=generator, dtype=torch.float64)

    def between(*shape):
        return torch.rand(*shape, generator=generator, dtype=torch.float64)

    steps_sizes = between(batch, steps, width)
    A = gate * between(width, states)
    return [random(batch, steps, width), steps_sizes, A, random(batch, steps, states), random(batch, steps, states),
            random(batch, width, states)]  # fmt: skip


def run(function, arguments, dtype, state=True):
    """Values and gradients: neither form knows a scale."""
    return values_and_gradients(
        lambda *a: function(*(a[:-2] if state else a[:-1]), *(a[-1:] if state else ())), arguments, dtype, state=state
    )


def fast(compiled):
    """The scan in one of its forms."""
    return lambda *a: scan.selective_scan(*a, compiled=compiled)


@pytest.mark.parametrize("steps", STEPS)
@pytest.mark.parametrize("compiled", COMPILED)
def test_equal_to_the_loop(steps, compiled):
    for state in (True, False):
        arguments = inputs(steps)
        wanted = run(selective_scan_loop, arguments, torch.float64, state)
        for dtype, bound in ((torch.float32, 1e-5),) if compiled else ((torch.float64, 1e-13), (torch.float32, 1e-5)):
            got = run(fast(compiled), arguments, dtype, state)
            assert max(map(error, got, wanted)) < bound, (steps, state, dtype)


@pytest.mark.parametrize("width", [1, 127, 128, 129, 300])
@pytest.mark.parametrize("batch", [1, 3])
@pytest.mark.skipif(not importlib.util.find_spec("numba"), reason="no numba")
def test_compiled_blocks_and_shares_of_channels(width, batch):
    """Channels in blocks, and in several tasks where the batch is small."""
    arguments = inputs(40, batch=batch, width=width)
    wanted = run(selective_scan_loop, arguments, torch.float64)
    assert max(map(error, run(fast(True), arguments, torch.float32), wanted)) < 1e-5


@pytest.mark.parametrize("gate", GATES)
@pytest.mark.parametrize("compiled", COMPILED)
def test_any_decay_is_exact(gate, compiled):
    arguments = inputs(100, gate=gate)
    wanted = run(selective_scan_loop, arguments, torch.float64)
    got = run(fast(compiled), arguments, torch.float32)
    for index, (ours, theirs) in enumerate(zip(got, wanted, strict=True)):
        assert ours.isfinite().all(), index
        size = theirs.norm().clamp_min(0.1 * wanted[2].norm())
        assert (ours.double() - theirs).norm() / size < 1e-4, (gate, index)


@pytest.mark.parametrize("compiled", COMPILED)
def test_strong_and_weak_decays_together(compiled):
    arguments = inputs(64, gate=-1e-3)
    arguments[1][:, [0, 5, 40]] = 1e7
    wanted = run(selective_scan_loop, arguments, torch.float64)
    assert max(map(error, run(fast(compiled), arguments, torch.float32), wanted)) < 1e-5


@pytest.mark.parametrize("compiled", COMPILED)
def test_half_precision_is_only_a_cast_and_autocast_stays_outside(compiled):
    arguments = [a.bfloat16() for a in inputs(70)[:-1]]
    out, last = scan.selective_scan(*arguments, compiled=compiled)
    wanted, state = scan.selective_scan(*(a.float() for a in arguments), compiled=compiled)
    assert out.dtype == torch.bfloat16 and last.dtype == torch.float32
    assert torch.equal(out, wanted.bfloat16()) and torch.equal(last, state)
    arguments = [a.float().requires_grad_() for a in inputs(70)[:-1]]
    wanted = torch.autograd.grad(scan.selective_scan(*arguments, compiled=compiled)[0].cos().sum(), arguments)
    with torch.autocast("cpu", torch.bfloat16):
        out, _ = scan.selective_scan(*arguments, compiled=compiled)
        got = torch.autograd.grad(out.cos().sum(), arguments)
    assert all(map(torch.equal, got, wanted))


@pytest.mark.skipif(not importlib.util.find_spec("numba"), reason="no numba")
def test_the_number_of_threads_is_torchs_and_changes_nothing(monkeypatch):
    from selectivbench_hf.kernels import scan_numba

    used, task = set(), scan_numba._forward_task
    barrier = threading.Barrier(2, timeout=60)

    def spy(*arguments):
        if threading.get_ident() not in used:
            used.add(threading.get_ident())
            if threads == 2:  # the first of two threads waits for the other
                barrier.wait()
        task(*arguments)

    monkeypatch.setattr(scan_numba, "_forward_task", spy)
    before, results = torch.get_num_threads(), []
    try:
        for threads in (1, 2):
            torch.set_num_threads(threads)
            used.clear()
            results.append(run(fast(True), inputs(40, batch=1, width=300), torch.float32))
            assert len(used) == threads and (threading.get_ident() in used) == (threads == 1)
    finally:
        torch.set_num_threads(before)
    assert all(map(torch.equal, *results))


@pytest.mark.skipif(not importlib.util.find_spec("numba"), reason="no numba")
def test_a_folder_that_cannot_be_written_costs_only_the_kept_code(monkeypatch):
    """numba refuses cache=True where it finds no folder for it."""
    from selectivbench_hf.kernels import scan_numba

    calls, real = [], scan_numba.numba.njit

    def njit(function, cache=False, **options):
        calls.append(cache)
        if cache:
            raise RuntimeError("cannot cache function: no locator available")
        return real(function, **options)

    monkeypatch.setattr(scan_numba.numba, "njit", njit)
    exponential = scan_numba._compile(lambda x: x + 1)
    assert exponential(2) == 3 and calls == [True, False]


@pytest.mark.skipif(not importlib.util.find_spec("numba"), reason="no numba")
def test_compiling_is_explained_if_it_takes_long(monkeypatch, capsys):
    from selectivbench_hf.kernels import scan_numba

    def slow(number):
        time.sleep(0.3)

    def quick(number):
        pass

    monkeypatch.setattr(scan_numba, "PATIENCE", 0.1)
    monkeypatch.setattr(scan_numba, "_ran", set())
    for task, lines in ((slow, 1), (slow, 0), (quick, 0)):
        scan_numba._run(task, [(1,)])
        assert capsys.readouterr().err.count("compiling Mamba's scan") == lines


def test_without_numba_it_says_so_once_and_the_record_tells(monkeypatch, capsys):
    monkeypatch.setattr(scan.importlib.util, "find_spec", lambda name: None)
    scan.compiled_form_runs.cache_clear()
    try:
        arguments = [a.float() for a in inputs(20)[:-1]]
        wanted, _ = scan.selective_scan(*arguments, compiled=False)
        for _ in range(2):
            assert torch.equal(scan.selective_scan(*arguments)[0], wanted)
        assert capsys.readouterr().err.count("numba is not installed") == 1
        assert kernels.backend("cpu", "mamba") == "cpu-torch-scan"
    finally:
        scan.compiled_form_runs.cache_clear()


@pytest.mark.skipif(not importlib.util.find_spec("numba"), reason="no numba")
def test_the_compiled_form_runs_where_it_can(monkeypatch, capsys):
    from selectivbench_hf.kernels import scan_numba

    calls, forward = [], scan_numba.forward
    monkeypatch.setattr(scan_numba, "forward", lambda *a: (calls.append(1), forward(*a)))
    scan.selective_scan(*(a.float() for a in inputs(20)[:-1]))
    scan.selective_scan(*(a.double() for a in inputs(20)[:-1]))  # exact: in torch
    assert len(calls) == 1 and "not installed" not in capsys.readouterr().err
    assert kernels.backend("cpu", "mamba") == "cpu-numba"


@pytest.mark.parametrize("decay", ["learned", "fixed", "none"])
def test_what_mamba_ssm_would_be_given(monkeypatch, decay):
    """Its function computes h_t = exp(dt_t A) h_{t-1} + dt_t x_t B_t with the time axis last: played here by our loop."""
    from selectivbench_hf.kernels import mamba

    def selective_scan_fn(x, step, A, key, query, return_last_state):
        assert return_last_state and all(t.is_contiguous() for t in (x, step, key, query))
        x, step, key, query = (t.transpose(1, 2) for t in (x, step, key, query))
        y, state = selective_scan_loop(x * step, step, A, key, query)
        return y.transpose(1, 2), state

    home = "mamba_ssm.ops.selective_scan_interface"
    monkeypatch.setitem(sys.modules, home, types.SimpleNamespace(selective_scan_fn=selective_scan_fn))
    monkeypatch.setattr(mamba, "mamba_ssm_runs", lambda: True)
    u, step, A, key, query, state = inputs(30)
    decay_step = None
    if decay == "fixed":
        decay_step = torch.full_like(step, 0.3)
    elif decay == "none":
        A = torch.zeros_like(A)

    class Cuda(torch.Tensor):
        """A tensor that says it is on CUDA."""

        device = torch.device("cuda")

    for start in (None, state):  # with a state it is our scan's turn
        wanted, last = mamba._scan(u, step, decay_step, A, key, query, start)
        if start is None:
            got, end = mamba._scan(u.as_subclass(Cuda), step, decay_step, A, key, query, start)
            assert torch.allclose(got, wanted) and torch.allclose(end, last)


def test_a_process_that_forks_can_scan_too():
    """Data loaders fork after a scan has run in threads."""
    code = """
import os, torch
from selectivbench_hf.kernels.scan import selective_scan
torch.set_num_threads(2)
x = torch.rand(2, 20, 8)
run = lambda: selective_scan(x, x, -torch.rand(8, 3), torch.rand(2, 20, 3), torch.rand(2, 20, 3))[0].isfinite().all()
assert run()
child = os.fork()
if child == 0:
    os._exit(0 if run() else 1)
print(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=120)
    assert done.stdout.strip() == "0", done.stderr
