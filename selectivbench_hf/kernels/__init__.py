"""CPU forms of fla's recurrences, and the switch that puts them under fla's layers.

    import selectivbench_hf as sb
    sb.kernels.enable()          # any fla layer whose kernels are covered now runs and trains on CPU tensors
    sb.kernels.disable()         # and fla is as it was

Our models call `enable()` themselves when they are built, loaded, or arrive in another process. CUDA tensors always take fla's own
kernels. What is covered, and what is not: docs/kernels.md.
"""


def enable() -> None:
    """Let fla's layers run on CPU tensors; does nothing the second time.

    Raises RuntimeError, naming the difference, if the installed fla-core is not a tested version, if one of its functions is not
    where or what it was, or if FLA_DISABLE_BACKEND_DISPATCH is set; ImportError if fla or triton is missing.
    """
    from . import dispatch

    dispatch.enable()


def disable() -> None:
    """Take the kernels back; does nothing if they are not enabled."""
    import sys

    if f"{__name__}.dispatch" in sys.modules:
        from . import dispatch

        dispatch.disable()


def enabled() -> bool:
    """Whether the kernels are in place in this process."""
    import sys

    return f"{__name__}.dispatch" in sys.modules and sys.modules[f"{__name__}.dispatch"].enabled()


def backend(device, mixer: str) -> str:
    """What computes the mixer's mixing on that device, for the record. device: a torch.device or its name.

    "cpu-chunked" (this package), "fla-triton" ("fla-triton (float32 as bfloat16)" where its kernels refuse float32), "torch-sdpa",
    "torch" (the classics), or "module" for a mixer from outside. Mamba, for which fla has no kernel: "cpu-numba", without numba
    "cpu-torch-scan"; on CUDA "mamba-ssm", without it "cuda-torch-scan" (slow).
    """
    from importlib.util import find_spec

    from ..models.mixer import load_class
    from ..models.mixers import get_mixer

    entry, on_cpu = get_mixer(mixer), str(device).split(":")[0] == "cpu"
    if not entry.needs_fla:
        return {"attention": "torch-sdpa", "classic": "torch"}.get(entry.family, entry.family)
    if mixer == "mamba":
        if on_cpu:
            return "cpu-numba" if find_spec("numba") else "cpu-torch-scan"
        return "mamba-ssm" if find_spec("mamba_ssm") else "cuda-torch-scan"
    if on_cpu:
        return "cpu-chunked"
    half = getattr(load_class(entry.layer), "computes_in", None)
    return f"fla-triton (float32 as {half})" if half else "fla-triton"
