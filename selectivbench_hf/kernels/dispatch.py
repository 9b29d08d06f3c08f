"""How our CPU kernels get under fla's layers, and come out again.

Three tables, gathered from the modules of `bindings`, hold each function with the signature it had when our version was written and
tested. Where fla has a dispatch
point for a function or an operation, a backend "cpu" is registered there, asked first and accepting only calls whose first tensor
is on the CPU. Functions without such a point are replaced, wherever a fla module holds a reference to them, by a wrapper that
calls the original for any other device. Anything that differs from the tables is an error that names it: no best effort.
"""

import functools
import importlib
import importlib.metadata
import inspect
import sys
import warnings

from ..imports import explained
from . import bindings

TESTED_VERSIONS = ("0.6.0",)
ENTRY = "selectivbench_cpu_kernel"

_families = [importlib.import_module(f"{bindings.__name__}.{name}") for name in bindings.FAMILIES]
DISPATCHED, OPERATIONS, REPLACED = (
    [entry for family in _families for entry in getattr(family, table, ())]
    for table in ("DISPATCHED", "OPERATIONS", "REPLACED")
)

_undo: list = []


def enable() -> None:
    """See selectivbench_hf.kernels.enable."""
    if _undo:
        return
    try:
        version = importlib.metadata.version("fla-core")
    except importlib.metadata.PackageNotFoundError:
        raise ImportError("kernels.enable() needs flash-linear-attention, which is not installed here") from None
    if version not in TESTED_VERSIONS:
        raise RuntimeError(
            f"the CPU kernels are tested with fla-core {', '.join(TESTED_VERSIONS)}, and {version} is installed; "
            f"install one of these versions, or train on CUDA"
        )
    with warnings.catch_warnings(), explained("flash-linear-attention", "fla.layers"):
        warnings.filterwarnings(
            "ignore", message="Triton is not supported on current platform"
        )  # the reason we are here
        import fla.layers  # noqa: F401  (loads the modules that hold references)
    from fla import backends

    if backends._DISPATCH_DISABLED:
        raise RuntimeError(
            "FLA_DISABLE_BACKEND_DISPATCH=1 is set, so fla ignores every backend and the CPU kernels cannot be enabled; unset it"
        )
    operations = [(home, name, ours, signature) for _, home, name, ours, signature in OPERATIONS]
    originals = [_checked(*entry) for entry in DISPATCHED + operations + REPLACED]
    try:
        for (_, name, ours, _), original in zip(DISPATCHED, originals, strict=False):
            _register(backends._function_registries[inspect.unwrap(original)], backends, {name: _in_own_types(ours)})
        for operation, _, name, ours, _ in OPERATIONS:
            _register(backends._get_operation_registry(operation), backends, {name: ours})
        for (home, name, ours, _), original in zip(REPLACED, originals[-len(REPLACED) :], strict=True):
            _replace(home, name, ours, original)
    except BaseException:
        disable()
        raise


def disable() -> None:
    """See selectivbench_hf.kernels.disable."""
    while _undo:
        _undo.pop()()


def enabled() -> bool:
    """Whether fla's layers now run on CPU tensors."""
    return bool(_undo)


def signature_of(function) -> str:
    """Names and defaults of a function's parameters, without annotations."""
    parameters = inspect.signature(inspect.unwrap(function)).parameters.values()
    return str(inspect.Signature([p.replace(annotation=inspect.Parameter.empty) for p in parameters]))


def _checked(home, name, ours, signature):
    """The function as fla has it; raises if it is not where, or not what, the tables say."""
    try:
        found = functools.reduce(getattr, name.split("."), importlib.import_module(home))
    except (ImportError, AttributeError) as error:
        raise RuntimeError(f"the CPU kernels expect fla to have {home}.{name}, and it has not") from error
    if signature_of(found) != signature:
        raise RuntimeError(
            f"fla's {home}.{name} has the signature {signature_of(found)}, and the CPU kernels were written for {signature}"
        )
    return found


def first_tensor_on_cpu(*args, **kwargs):
    """fla's question to a backend: do you take this call? (yes or no, why not)"""
    import torch

    for value in (*args, *kwargs.values()):
        if isinstance(value, torch.Tensor):
            return value.device.type == "cpu", "the first tensor is not on the CPU"
    return False, "no tensor among the arguments"


def _in_own_types(function):
    """Kernels know nothing of autocast, and fla calls these from forward and backward passes where it may be on."""
    import torch

    @functools.wraps(function)
    def called(*args, **kwargs):
        if not torch.is_autocast_enabled("cpu"):
            return function(*args, **kwargs)
        with torch.autocast("cpu", enabled=False):
            return function(*args, **kwargs)

    return called


def _register(registry, backends, functions: dict) -> None:
    backend = type(
        "CpuBackend",
        (backends.BaseBackend,),
        {"backend_type": "cpu", "priority": -100, **{name: staticmethod(f) for name, f in functions.items()}},
    )()
    backend.verifier = first_tensor_on_cpu
    before = registry._backends.get("cpu")
    registry.register(backend)

    def undo():
        if before is None:
            registry._backends.pop("cpu", None)
        else:
            registry._backends["cpu"] = before

    _undo.append(undo)


def _replace(home, name, ours, original) -> None:
    @functools.wraps(original)
    def by_device(*args, **kwargs):
        on_cpu, _ = first_tensor_on_cpu(*args, **kwargs)
        return (ours if on_cpu else original)(*args, **kwargs)

    setattr(by_device, ENTRY, ours)
    if "." in name:
        owner, attribute = name.split(".")
        holder = getattr(importlib.import_module(home), owner)
        setattr(holder, attribute, by_device)
        _undo.append(lambda: setattr(holder, attribute, original))
        return
    _swap(original, by_device)
    _undo.append(lambda: _swap(by_device, original))


def _swap(old, new) -> None:
    """Put `new` wherever a module of fla holds `old`: where it is defined, in its packages, and in the layers that imported it."""
    for module_name, module in list(sys.modules.items()):
        if module is not None and (module_name == "fla" or module_name.startswith("fla.")):
            for attribute, value in list(vars(module).items()):
                if value is old:
                    setattr(module, attribute, new)
