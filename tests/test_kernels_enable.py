"""The switch: explicit, idempotent, reversible, loud about anything that differs, and blind to other devices."""

import importlib
import importlib.metadata
import inspect
import multiprocessing
import pkgutil
import sys

import pytest
import torch
from models_helper import LRM, MIXERS, model

pytest.importorskip("triton")
pytest.importorskip("fla", reason="flash-linear-attention is not installed")

from selectivbench_hf import kernels
from selectivbench_hf.kernels import dispatch
from selectivbench_hf.models import layers


@pytest.fixture(autouse=True)
def _restored():
    kernels.disable()
    yield
    kernels.disable()


def references(function):
    """Where the loaded modules of fla, or those of our layers, hold that very object."""
    return [
        f"{name}.{attribute}"
        for name, module in list(sys.modules.items())
        if module is not None and name.startswith(("fla", layers.__name__))
        for attribute, value in list(vars(module).items())
        if value is function
    ]


def original(home, name):
    """The function as fla defines it."""
    module = sys.modules[home]
    for part in name.split("."):
        module = getattr(module, part)
    return module


def layer_runs():
    """Whether a GLA layer runs on CPU tensors here."""
    import fla.layers

    layer = fla.layers.GatedLinearAttention(hidden_size=32, num_heads=2, layer_idx=0)
    return bool(layer(torch.randn(1, 70, 32))[0].isfinite().all())


def test_enable_and_disable_leave_no_trace():
    import fla.layers  # noqa: F401
    from fla import backends

    for found in pkgutil.iter_modules(layers.__path__):  # imported while the kernels are off, as in a fresh process
        importlib.import_module(f"{layers.__name__}.{found.name}")

    homes = {(home, name): original(home, name) for home, name, _, _ in dispatch.REPLACED}
    places = {key: references(function) for key, function in homes.items() if "." not in key[1]}
    registered = {
        id(r): dict(r._backends)
        for r in (*backends._function_registries.values(), *backends._operation_registries.values())
    }
    assert not kernels.enabled()
    kernels.enable()
    kernels.enable()
    assert kernels.enabled() and layer_runs()
    for (home, name), function in homes.items():
        assert hasattr(original(home, name), dispatch.ENTRY)
        assert references(function) == [], f"{home}.{name} is still referenced"
    kernels.disable()
    kernels.disable()
    assert not kernels.enabled()
    for key, function in homes.items():
        assert original(*key) is function
        if key in places:
            assert references(function) == places[key]
    for registry in (*backends._function_registries.values(), *backends._operation_registries.values()):
        assert dict(registry._backends) == registered.get(id(registry), {})


def test_layers_hold_the_wrappers():
    kernels.enable()
    import fla.layers.gla

    for name in ("chunk_gla", "fused_recurrent_gla"):
        wrapper = getattr(fla.layers.gla, name)
        assert wrapper is getattr(sys.modules["fla.ops.gla"], name)
        assert not hasattr(wrapper.__wrapped__, dispatch.ENTRY)


def test_another_version_is_refused(monkeypatch):
    monkeypatch.setattr(importlib.metadata, "version", lambda name: "0.7.1")
    with pytest.raises(RuntimeError, match=r"0\.6\.0.*0\.7\.1"):
        kernels.enable()
    assert not kernels.enabled()


def test_a_changed_signature_is_named(monkeypatch):
    import fla.ops.gla.chunk

    def chunk_gla(q, k, v, gates):
        raise AssertionError

    monkeypatch.setattr(fla.ops.gla.chunk, "chunk_gla", chunk_gla)
    with pytest.raises(RuntimeError, match=r"fla\.ops\.gla\.chunk\.chunk_gla has the signature \(q, k, v, gates\)"):
        kernels.enable()
    assert not kernels.enabled()


def test_a_function_that_moved_is_named(monkeypatch):
    import fla.modules.norm.layernorm_gated as home

    monkeypatch.delattr(home, "rmsnorm_fn")
    with pytest.raises(RuntimeError, match="layernorm_gated.rmsnorm_fn"):
        kernels.enable()


def test_disabled_dispatch_is_refused_loudly(monkeypatch):
    import fla.backends

    monkeypatch.setattr(fla.backends, "_DISPATCH_DISABLED", True)  # what FLA_DISABLE_BACKEND_DISPATCH=1 sets at import
    with pytest.raises(RuntimeError, match="FLA_DISABLE_BACKEND_DISPATCH=1"):
        kernels.enable()


def test_other_devices_get_the_original():
    """Meta tensors stand for CUDA ones: the wrapper and the dispatch points must pass them on."""
    assert dispatch.first_tensor_on_cpu(1, torch.empty(1, device="meta"))[0] is False
    assert dispatch.first_tensor_on_cpu(1, g=torch.empty(1))[0] is True
    assert dispatch.first_tensor_on_cpu(1)[0] is False
    calls = []
    module = sys.modules["fla.ops.gla.chunk"]
    before = module.chunk_gla
    try:
        module.chunk_gla = lambda *args, **kwargs: calls.append("original")
        dispatch._replace("fla.ops.gla.chunk", "chunk_gla", lambda *a, **k: calls.append("ours"), module.chunk_gla)
        module.chunk_gla(torch.empty(1, device="meta"))
        module.chunk_gla(torch.empty(1))
    finally:
        dispatch.disable()
        module.chunk_gla = before
    assert calls == ["original", "ours"]


@pytest.mark.parametrize("argument", ["cu_seqlens", "gv", "reverse"])
def test_unsupported_arguments_are_named(argument):
    kernels.enable()
    from fla.ops.gla import chunk_gla, fused_recurrent_gla

    x = torch.randn(1, 8, 1, 4)
    value = True if argument == "reverse" else torch.tensor([0, 8])
    with pytest.raises(NotImplementedError, match=argument):
        fused_recurrent_gla(x, x, x, gk=-x.abs(), **{argument: value})
    if argument == "cu_seqlens":
        with pytest.raises(NotImplementedError, match=argument):
            chunk_gla(x, x, x, -x.abs(), cu_seqlens=value)


def test_the_tables_agree_with_our_functions():
    """Ours take the arguments they are recorded with."""
    for home, name, ours, signature in (
        dispatch.DISPATCHED + dispatch.REPLACED + [entry[1:] for entry in dispatch.OPERATIONS]
    ):
        names = [p.strip().split("=")[0] for p in signature.strip("()").split(",")]
        mine = list(inspect.signature(ours).parameters)
        if "." in name:  # a method, which calls itself `self` and the rest as its class does
            assert len(mine) == len(names)
        else:
            assert [n.lstrip("*") for n in names] == mine, f"{home}.{name}"


def _in_another_process(model):
    with torch.no_grad():
        return model(input_ids=torch.arange(80).remainder(6).view(1, -1)).logits.sum().item()


def test_a_model_sent_to_a_spawned_process_runs_there():
    with multiprocessing.get_context("spawn").Pool(1) as pool:
        for mixer in LRM:
            net = model(mixer)
            assert pool.apply(_in_another_process, (net,)) == pytest.approx(_in_another_process(net), abs=1e-3), mixer


def test_backend_names():
    assert kernels.backend("cpu", "gla") == "cpu-chunked"
    assert kernels.backend(torch.device("cuda", 0), "mamba2") == "fla-triton"
    assert kernels.backend("cpu", "transformer") == "torch-sdpa"
    assert kernels.backend("cpu", "fox") == "cpu-chunked"
    assert kernels.backend("cuda", "gru") == "torch"
    for name, mixer in MIXERS.items():
        here, there = kernels.backend("cpu", name), kernels.backend("cuda", name)
        assert here in (("cpu-chunked", "cpu-numba", "cpu-torch-scan") if mixer.needs_fla else ("torch", "torch-sdpa"))
        assert (here == there) != mixer.needs_fla
