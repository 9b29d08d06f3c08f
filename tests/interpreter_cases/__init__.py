"""What fla_interpreter.py records, one module for a family of layers.

CASES: name -> (class, its arguments, steps, training mode). The class is a name in fla.layers, or "module:class" for one that fla
does not export there. A fifth entry may change what is recorded or how exactly it must be met (see fla_interpreter.py).
"""

import importlib
import pkgutil

CASES = {}
for _found in pkgutil.iter_modules(__path__):
    CASES |= importlib.import_module(f"{__name__}.{_found.name}").CASES
