"""How our CPU kernels get under fla's layers, and come out again.

Three tables, each with the signature of the function as it was when our version was written and tested. Where fla has a dispatch
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

from . import recurrences, small
from .mamba2 import ssd_forward

TESTED_VERSIONS = ("0.6.0",)
ENTRY = "selectivbench_cpu_kernel"

# (home module, name, ours, signature)
DISPATCHED = [
    ("fla.modules.causal_conv1d.ops", "causal_conv1d_fwd", small.causal_conv1d_fwd,
     "(x, weight, bias, residual, initial_state=None, output_final_state=False, activation=None, cu_seqlens=None, "
     "cu_seqlens_cpu=None, chunk_indices=None, chunk_size=64, layout_fallback=False)"),
    ("fla.modules.causal_conv1d.ops", "causal_conv1d_bwd", small.causal_conv1d_bwd,
     "(x, dy, dht, weight=None, bias=None, residual=None, initial_state=None, activation=None, cu_seqlens=None, "
     "cu_seqlens_cpu=None, chunk_indices=None, chunk_size=64, layout_fallback=False)"),
    ("fla.modules.causal_conv1d.ops", "causal_conv1d_update", small.causal_conv1d_update,
     "(x, cache, residual=None, weight=None, bias=None, activation=None)"),
    ("fla.modules.causal_conv1d.ops", "causal_conv1d_update_states", small.causal_conv1d_update_states,
     "(x, state_len, initial_state=None, cu_seqlens=None)"),
    ("fla.modules.norm.fused_norm_gate", "layer_norm_gated_fwd", small.layer_norm_gated_fwd,
     "(x, g, weight, bias, activation='swish', eps=1e-05, residual=None, out_dtype=None, residual_dtype=None, is_rms_norm=False)"),
    ("fla.modules.norm.fused_norm_gate", "layer_norm_gated_bwd", small.layer_norm_gated_bwd,
     "(dy, x, g, weight, bias, activation='swish', eps=1e-05, mean=None, rstd=None, dresidual=None, has_residual=False, "
     "is_rms_norm=False, x_dtype=None, recompute_output=False)"),
    ("fla.modules.norm.layernorm", "layer_norm_fwd", small.layer_norm_fwd,
     "(x, weight, bias, eps=1e-05, residual=None, out_dtype=None, residual_dtype=None, is_rms_norm=False, num_groups=1)"),
    ("fla.modules.norm.layernorm", "layer_norm_bwd", small.layer_norm_bwd,
     "(dy, x, weight, bias, mean=None, rstd=None, dres=None, has_residual=False, is_rms_norm=False, x_dtype=None, "
     "recompute_output=False, num_groups=1)"),
    ("fla.modules.activations.ops", "swish_fwd", small.swish_fwd, "(x, output_contiguous=False)"),
    ("fla.modules.activations.ops", "swish_bwd", small.swish_bwd, "(x, dy, output_contiguous=False)"),
    ("fla.modules.activations.ops", "sigmoid_fwd", small.sigmoid_fwd, "(x, output_contiguous=False)"),
    ("fla.modules.activations.ops", "sigmoid_bwd", small.sigmoid_bwd, "(x, dy, output_contiguous=False)"),
    ("fla.modules.activations.ops", "logsigmoid_fwd", small.logsigmoid_fwd, "(x, temperature=1.0, output_contiguous=False)"),
    ("fla.modules.activations.ops", "logsigmoid_bwd", small.logsigmoid_bwd, "(x, dy, temperature=1.0, output_contiguous=False)"),
    ("fla.ops.simple_gla.fused_recurrent", "fused_recurrent_simple_gla", recurrences.fused_recurrent_simple_gla,
     "(q, k, v, g=None, g_gamma=None, scale=None, initial_state=None, output_final_state=False, reverse=False, "
     "state_v_first=False, cu_seqlens=None, **kwargs)"),
]  # fmt: skip

# (operation, home module, name, ours, signature)
OPERATIONS = [
    ("gated_delta_rule", "fla.ops.gated_delta_rule.chunk", "chunk_gated_delta_rule", recurrences.chunk_gated_delta_rule,
     "(q, k, v, g, beta, scale=None, initial_state=None, output_final_state=False, use_qk_l2norm_in_kernel=False, "
     "use_beta_sigmoid_in_kernel=False, allow_neg_eigval=False, state_v_first=False, cu_seqlens=None, cu_seqlens_cpu=None, "
     "chunk_indices=None, cp_context=None, **kwargs)"),
]  # fmt: skip

# (home module, name or Class.method, ours, signature)
REPLACED = [
    ("fla.ops.gla.chunk", "chunk_gla", recurrences.chunk_gla,
     "(q, k, v, g, scale=None, initial_state=None, output_final_state=False, state_v_first=False, cu_seqlens=None, "
     "cu_seqlens_cpu=None)"),
    ("fla.ops.gla.fused_recurrent", "fused_recurrent_gla", recurrences.fused_recurrent_gla,
     "(q, k, v, gk=None, gv=None, scale=None, initial_state=None, output_final_state=False, reverse=False, state_v_first=False, "
     "cu_seqlens=None, **kwargs)"),
    ("fla.ops.simple_gla.chunk", "chunk_simple_gla", recurrences.chunk_simple_gla,
     "(q, k, v, g=None, g_gamma=None, scale=None, initial_state=None, output_final_state=False, state_v_first=False, "
     "cu_seqlens=None, cu_seqlens_cpu=None, **kwargs)"),
    ("fla.ops.gated_delta_rule.fused_recurrent", "fused_recurrent_gated_delta_rule", recurrences.fused_recurrent_gated_delta_rule,
     "(q, k, v, g=None, gk=None, gv=None, beta=None, scale=None, initial_state=None, output_final_state=False, "
     "use_qk_l2norm_in_kernel=False, use_gate_in_kernel=False, A_log=None, dt_bias=None, use_beta_sigmoid_in_kernel=False, "
     "allow_neg_eigval=False, state_v_first=False, cu_seqlens=None, **kwargs)"),
    ("fla.modules.norm.layernorm_gated", "rmsnorm_fn", small.rmsnorm_fn,
     "(x, weight, bias, z=None, eps=1e-06, group_size=None, norm_before_gate=True)"),
    ("fla.layers.mamba2", "Mamba2.torch_forward", ssd_forward,
     "(self, input_states, last_state=None, use_cache=False, attention_mask=None)"),
]  # fmt: skip

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
    with warnings.catch_warnings():
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
            _register(backends._function_registries[inspect.unwrap(original)], backends, {name: ours})
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
