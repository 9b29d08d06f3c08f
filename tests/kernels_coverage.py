"""What `kernels.enable()` covers, as docs/kernels.md tells it: `python tests/kernels_coverage.py` writes the tables there anew.

Each layer that fla exports is built small and run on the CPU: 40 steps (the short form) and 128 (chunks), in training with gradients and in
evaluation.
"""

import inspect
import re
import warnings
from pathlib import Path

PAGE = Path(__file__).parent.parent / "docs" / "kernels.md"
WIDTH, STEPS = 64, (40, 128)
COMMON = {
    "hidden_size": WIDTH,
    "d_model": WIDTH,
    "num_heads": 2,
    "head_dim": 32,
    "layer_idx": 0,
    "num_hidden_layers": 2,
}
OWN = {  # what a layer needs to be built at this width
    "BasedLinearAttention": {"num_key_value_heads": 2},
    "HGRN2Attention": {"expand_ratio": 32},
    "LogLinearMamba2": {"num_heads": 4},
    "Mamba2": {"num_heads": 4},
    "NativeSparseAttention": {"num_heads": 16, "num_kv_heads": 1},
    "ReBasedLinearAttention": {"num_key_value_heads": 2, "feature_dim": 16},
}


def layers() -> dict[str, type]:
    """The layers that fla exports."""
    import fla.layers
    from torch import nn

    return {n: c for n, c in sorted(vars(fla.layers).items()) if isinstance(c, type) and issubclass(c, nn.Module)}


def outcome(cls: type) -> str:
    """ "yes", or what stops the layer on the CPU."""
    import torch

    known = inspect.signature(cls.__init__).parameters
    arguments = {k: v for k, v in {**COMMON, **OWN.get(cls.__name__, {})}.items() if k in known}
    try:
        torch.manual_seed(0)
        layer = cls(**arguments)
        extra = {}
        if "shared_k" in inspect.signature(cls.forward).parameters:  # it takes another layer's keys and values
            shared = torch.randn(2, max(STEPS), 2, 32)
            extra = {"shared_k": shared, "shared_v": shared}
        for steps in STEPS:
            for train in (True, False):
                x = torch.randn(2, steps, WIDTH, requires_grad=train)
                out = layer.train(train)(x, **{name: value[:, :steps] for name, value in extra.items()})
                out = out[0] if isinstance(out, tuple) else out
                if train:
                    out.sum().backward()
                    if x.grad is None or not x.grad.isfinite().all():
                        return "no: no finite gradient"
                if not out.isfinite().all():
                    return "no: not finite"
    except Exception as error:
        said = str(error).strip().splitlines() or [""]
        if "active drivers" in said[0]:
            return "no: its Triton kernels have no CPU form here"
        return f"no: {type(error).__name__}: {said[0]}"
    return "yes"


def layer_lines() -> list[str]:
    """The table of layers."""
    from selectivbench_hf import kernels

    kernels.enable()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return [f"| `{name}` | {outcome(cls)} |" for name, cls in layers().items()]


def function_lines() -> list[str]:
    """The table of functions, by the module of fla that has them."""
    from selectivbench_hf.kernels import dispatch

    entries = {
        (home, name)
        for home, name, *_ in dispatch.DISPATCHED + dispatch.REPLACED + [entry[1:] for entry in dispatch.OPERATIONS]
    }
    homes = sorted({home for home, _ in entries})
    return [
        f"| `{home}` | {', '.join(f'`{n}`' for n in sorted(n for h, n in entries if h == home))} |" for home in homes
    ]


def block(text: str, name: str) -> list[str]:
    """The rows of a table of the page."""
    inside = re.search(rf"<!-- {name} -->\n(.*?)<!-- end -->", text, re.DOTALL).group(1)
    return [line for line in inside.splitlines() if line.startswith("| `")]


def main() -> None:
    """Write both tables into the page."""
    text = PAGE.read_text(encoding="utf-8")
    for name, head, lines in (
        ("functions", "| module of fla | functions |", function_lines()),
        ("layers", "| layer of fla | runs on the CPU |", layer_lines()),
    ):
        before, rest = text.split(f"<!-- {name} -->\n")
        table = "\n".join([head, "|---|---|", *lines, ""])
        text = f"{before}<!-- {name} -->\n{table}<!-- end -->{rest.split('<!-- end -->', 1)[1]}"
    PAGE.write_text(text, encoding="utf-8")


if __name__ == "__main__":
    main()
