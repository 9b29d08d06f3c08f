"""How `load_dataset("selectivbench", ...)` finds the builder.

`datasets` has neither loading scripts nor a plug-in registry for builders, so the function that turns a name into a builder is wrapped for this
one name, in both modules that hold it. Everything else goes through untouched. If `datasets` is not imported yet, a hook on its import does it
then, so that `import selectivbench_hf` stays light. The name `selectivbench` means the generated data even where a folder of that name lies in
the working directory; write `./selectivbench` for the folder.
"""

import functools
import inspect
import sys

from .imports import after_import

NAME = "selectivbench"
EXPECTED = ("path", "revision")  # the first parameters of the wrapped function that we rely on


def register() -> None:
    """Wrap now if `datasets` is imported, else right after its import. Idempotent."""
    if "datasets.inspect" in sys.modules:
        _wrap()
    else:
        after_import("datasets", _wrap)


def _wrap():
    import datasets.inspect
    import datasets.load

    inner = getattr(datasets.load, "dataset_module_factory", None)
    if inner is None or getattr(inner, "_selectivbench", False):
        return  # without the function there is nothing to wrap: load_dataset then says that it does not know the name

    @functools.wraps(inner)
    def factory(path, revision=None, *args, **keywords):
        if str(path) != NAME:
            return inner(path, revision, *args, **keywords)
        for given in ("data_files", "data_dir"):
            if keywords.get(given) is not None:
                raise ValueError(
                    f"selectivbench is generated, not read, so {given} has no meaning for it; a built folder is loaded by its path"
                )
        return _module(inner, revision)

    factory._selectivbench = True
    datasets.load.dataset_module_factory = factory
    if getattr(datasets.inspect, "dataset_module_factory", None) is inner:
        datasets.inspect.dataset_module_factory = factory


def _module(inner, revision):
    import datasets
    from datasets.load import DatasetModule

    from .builder import generator_hash
    from .tasks import DATA_VERSION

    given = tuple(inspect.signature(inner).parameters)[: len(EXPECTED)]
    if given != EXPECTED or not {"module_path", "hash", "builder_kwargs"} <= set(
        inspect.signature(DatasetModule).parameters
    ):
        raise RuntimeError(
            f"datasets {datasets.__version__} changed how it finds builders (parameters {given}), so selectivbench cannot be generated "
            "through load_dataset; use a tested version (datasets>=5.2,<6), or `selectivbench build` and load the folder"
        )
    if str(revision) not in ("None", "main", DATA_VERSION, f"v{DATA_VERSION}"):
        raise datasets.exceptions.DatasetNotFoundError(
            f"revision {str(revision)!r} of selectivbench is not to be had here: this package generates v{DATA_VERSION}; leave revision out or say "
            f"revision='v{DATA_VERSION}'"
        )
    return DatasetModule("selectivbench_hf.builder", generator_hash(), {"dataset_name": NAME})
