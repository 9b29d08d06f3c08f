"""Run fla's real Triton kernels without a GPU, slowly, in Triton's interpreter: the oracle for our CPU kernels.

    python tests/fla_interpreter.py tests/recordings [CASE ...]

writes one safetensors file per case: the layer's weights, an input, its output and all gradients, computed by fla's own kernels. The
tests compare our kernels with these files, so that CI needs minutes less and no interpreter; a slow test records afresh and compares.

Interpreter mode is chosen when a kernel is decorated, so `install()` runs before fla is imported, in a process of its own. Use
float32: bfloat16 arithmetic is wrong in the interpreter. Checked with triton 3.9.0 and fla-core 0.6.0.
"""

import ast
import importlib
import inspect
import os
import sys
from pathlib import Path

import numpy as np
from interpreter_cases import CASES


class Driver:
    """What fla and triton ask of an active driver, answered for 'no device'."""

    class utils:
        """Device properties."""

        @staticmethod
        def get_device_properties(index):
            """Enough for the launch heuristics."""
            return {"multiprocessor_count": 2, "max_shared_mem": 232448}

    def get_benchmarker(self):
        """Every kernel takes the same time."""
        return lambda fn, quantiles=None, **kwargs: [1.0] * (len(quantiles) if quantiles else 1)

    def get_current_target(self):
        """No GPU."""
        return type("Target", (), {"backend": "cpu", "arch": "none", "warp_size": 32})()

    def get_current_device(self):
        """The only one."""
        return 0

    def get_active_torch_device(self):
        """The CPU."""
        import torch

        return torch.device("cpu")

    def get_current_stream(self, device=None):
        """None to speak of."""
        return 0

    def get_device_interface(self):
        """torch's CPU interface."""
        import torch

        return torch.cpu

    def set_current_device(self, device):
        """Nothing to do."""


def install() -> None:
    """Make fla's Triton kernels run on CPU tensors in this process."""
    if any(name == "fla" or name.startswith("fla.") for name in sys.modules):
        raise RuntimeError("install() must run before fla is imported")
    os.environ["TRITON_INTERPRET"] = "1"
    import triton.language as tl
    from triton.runtime import autotuner, driver
    from triton.runtime import interpreter as interp

    driver.set_active(Driver())
    _first_configuration_only(autotuner.Autotuner)
    _tensor_loop_variables(interp, tl)
    _boolean_masks(interp, tl)
    _bfloat16_products(interp, tl)

    # fla binds tl.gather by value; bind it late, so that the interpreter's own is found
    def gather(*args, **kwargs):
        return tl.gather(*args, **kwargs)

    import fla.modules
    import fla.ops  # noqa: F401

    for module in list(sys.modules.values()):
        if getattr(module, "__name__", "").startswith("fla") and getattr(module, "gather", None) is tl.gather:
            module.gather = gather
    _device_functions(interp, tl)
    _float32_too("fla.ops.delta_rule.chunk", "chunk_delta_rule")
    _float32_too("fla.ops.gated_delta_product.chunk", "chunk_gated_delta_product")
    _path_in_float32()
    _log_linear_mamba2_off_cuda()


def _first_configuration_only(autotuner) -> None:
    """There is nothing to benchmark."""
    original = autotuner.__init__

    def init(self, fn, arg_names, configs, *args, **kwargs):
        original(self, fn, arg_names, configs[:1] if configs else configs, *args, **kwargs)

    autotuner.__init__ = init


def _tensor_loop_variables(interp, tl) -> None:
    """Loop variables are int32 scalars in a compiled kernel, but Python ints in the interpreter, which have no `.to`."""

    def int32_range(*bounds):
        def as_int(x):
            return int(x.handle.data.item()) if isinstance(x, tl.tensor) else int(getattr(x, "value", x))

        for i in range(*map(as_int, bounds)):
            yield tl.tensor(interp.TensorHandle(np.array([i], dtype=np.int32), tl.int32), tl.int32)

    class Rewriter(type(interp.FunctionRewriter.ast_transformer)):
        def visit_For(self, node):
            self.generic_visit(node)
            call = node.iter
            if isinstance(call, ast.Call) and isinstance(call.func, ast.Name) and call.func.id == "range":
                call.func = ast.copy_location(ast.Name(id="_int32_range", ctx=ast.Load()), call.func)
            return node

    interp.FunctionRewriter.ast_transformer = Rewriter()
    interp._int32_range = int32_range


def _boolean_masks(interp, tl) -> None:
    """Some kernels build integer masks, which NumPy would take for indices."""

    def with_boolean(method, position):
        def wrapped(self, *args, **kwargs):
            args = list(args)
            if args[position].data.dtype != np.bool_:
                args[position] = interp.TensorHandle(args[position].data.astype(np.bool_), tl.int1)
            return method(self, *args, **kwargs)

        return wrapped

    builder = interp.InterpreterBuilder
    builder.create_masked_load = with_boolean(builder.create_masked_load, 1)
    builder.create_masked_store = with_boolean(builder.create_masked_store, 2)


def _bfloat16_products(interp, tl) -> None:
    """The interpreter holds bfloat16 as its 16 bits, and would multiply matrices of bit patterns."""

    def widened(x):
        if x.dtype != tl.bfloat16:
            return x
        return interp.TensorHandle((x.data.astype(np.uint32) << 16).view(np.float32), tl.float32)

    builder = interp.InterpreterBuilder
    create_dot = builder.create_dot
    builder.create_dot = lambda self, a, b, *rest: create_dot(self, widened(a), widened(b), *rest)


def _device_functions(interp, tl) -> None:
    """Functions of the device library have no body in the interpreter; fla's logaddexp calls one."""
    import fla.ops.utils.op as op

    class Device:
        @staticmethod
        def log1p(x):
            return tl.tensor(interp.TensorHandle(np.log1p(x.handle.data), x.dtype.scalar), x.type)

    op.tldevice = Device


def _float32_too(home: str, name: str) -> None:
    """fla asserts that these get half precision, which the interpreter rounds or gets wrong; the kernels below are right in float32."""
    module = sys.modules[home]
    original = getattr(module, name)
    tree = ast.parse(inspect.getsource(inspect.unwrap(original)))
    body = tree.body[0].body
    tree.body[0].body = [s for s in body if not (isinstance(s, ast.Assert) and "torch.float32" in ast.unparse(s.test))]
    assert len(tree.body[0].body) == len(body) - 1, f"{home}.{name} has changed"
    exec(compile(tree, module.__file__, "exec"), vars(module))
    for other in list(sys.modules.values()):
        if getattr(other, "__name__", "").startswith("fla") and getattr(other, name, None) is original:
            setattr(other, name, getattr(module, name))


def _path_in_float32() -> None:
    """PaTH hands its factors in half precision from block to block; in float32 the kernels can be compared to the last digits."""
    import fla.ops.path_attn.parallel as path
    import torch

    class Torch:
        float16 = torch.float32

        def __getattr__(self, name):
            return getattr(torch, name)

    path.torch = Torch()


def _log_linear_mamba2_off_cuda() -> None:
    """The layer takes its only path where its weights are on a device named cuda."""
    from fla.layers.log_linear_mamba2 import LogLinearMamba2

    LogLinearMamba2.forward = lambda self, x: self.cuda_kernels_forward(x)


def case(name: str) -> tuple:
    """class, arguments, steps, training mode, and a dict of options:

    output, gradient    bounds of the relative error, where fla itself stores half precision
    autocast            the dtype under whose autocast the layer runs
    """
    entry = CASES[name]
    return (*entry, {}) if len(entry) == 4 else entry


def layer_class(name: str):
    """The class of fla that a case is about."""
    where = CASES[name][0]
    module, _, cls = where.rpartition(":")
    return getattr(importlib.import_module(module or "fla.layers"), cls)


def make_layer(name: str):
    """The layer of a case, the first of its model where it asks which it is."""
    cls, kwargs = layer_class(name), case(name)[1]
    first = {"layer_idx": 0} if "layer_idx" in inspect.signature(cls).parameters else {}
    return cls(**first | kwargs)


def build_case(name: str):
    """The layer (untrained, but with norms and biases off their starting values), an input (2, T, D), and whether it trains."""
    import torch

    _, kwargs, steps, train, _ = case(name)
    torch.manual_seed(len(name))
    layer = make_layer(name).train(train)
    with torch.no_grad():
        for parameter in layer.parameters():
            parameter.add_(torch.randn_like(parameter) * 0.1)
    return layer, torch.randn(2, steps, kwargs["hidden_size"]), train


def run_case(layer, x, train) -> dict:
    """Output and, in training mode, the gradient of x and of every parameter for a fixed weighting of the output."""
    import torch

    x = x.clone().requires_grad_(train)
    with torch.set_grad_enabled(train):
        out = layer(x)
    out = out[0] if isinstance(out, tuple) else out
    result = {"output": out.detach()}
    if train:
        weighting = torch.linspace(-1, 1, out.numel()).view_as(out).cos()
        names = [name for name, _ in layer.named_parameters()]
        gradients = torch.autograd.grad((out * weighting).sum(), [x, *layer.parameters()])
        result.update(zip(["gradient.x", *("gradient." + name for name in names)], gradients, strict=True))
    return result


def main(folder: str, *names: str) -> None:
    """Record these cases, or all, into the folder."""
    install()
    from safetensors.torch import save_file

    for name in names or CASES:
        layer, x, train = build_case(name)
        tensors = {
            "x": x,
            **{"weight." + key: value for key, value in layer.state_dict().items()},
            **run_case(layer, x, train),
        }
        save_file(
            {key: value.detach().contiguous() for key, value in tensors.items()}, Path(folder) / f"{name}.safetensors"
        )
        print(name, flush=True)


if __name__ == "__main__":
    main(*sys.argv[1:])
