"""Imports of heavy packages: something to do right after one, and a word to whoever waits for one."""

import contextlib
import importlib.abc
import importlib.util
import sys
import threading

PATIENCE = 3.0  # seconds before a slow import is explained


def after_import(package: str, action) -> None:
    """Call `action()` right after the first import of `package`, which must not be imported yet. A second call for it does nothing."""
    if not any(isinstance(finder, _Finder) and finder.package == package for finder in sys.meta_path):
        sys.meta_path.insert(0, _Finder(package, action))


class _Finder(importlib.abc.MetaPathFinder):
    """Finds nothing by itself: lets the usual finders find the package, and acts after its loader."""

    def __init__(self, package, action):
        self.package, self.action = package, action

    def find_spec(self, fullname, path=None, target=None):
        if fullname != self.package:
            return None
        sys.meta_path.remove(self)
        spec = importlib.util.find_spec(fullname)
        if spec is not None and spec.loader is not None:
            spec.loader = _Loader(spec.loader, self.action)
        return spec


class _Loader(importlib.abc.Loader):
    def __init__(self, inner, action):
        self.inner, self.action = inner, action

    def create_module(self, spec):
        return self.inner.create_module(spec)

    def exec_module(self, module):
        module.__spec__.loader = module.__loader__ = self.inner
        self.inner.exec_module(module)
        self.action()


@contextlib.contextmanager
def explained(package: str, module: str):
    """Context manager around the import of `module`: after some seconds one line on stderr says what takes so long. package: its full name."""
    if module in sys.modules:
        yield
        return
    sentence = f"importing {package} takes its time (all its layers and kernels, once in a process) ..."
    timer = threading.Timer(PATIENCE, lambda: print(sentence, file=sys.stderr, flush=True))
    timer.daemon = True
    timer.start()
    try:
        yield
    finally:
        timer.cancel()
