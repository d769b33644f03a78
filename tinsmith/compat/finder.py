"""Makes ``import tinygrad...`` give the modules of ``names``, in front of an installed tinygrad."""
from __future__ import annotations

import importlib
import importlib.abc
import importlib.machinery
import os
import sys
from collections.abc import Sequence
from types import ModuleType
from typing import Any

from tinsmith.compat.conventions import adopt, drop
from tinsmith.compat.module_table import PLACES, place
from tinsmith.compat.name_table import DEVICE_VARIABLES, DEVICES, MODULES, REASONS
from tinsmith.compat.variables import from_environment
from tinsmith.core.settings import settings, tell_unread
from tinsmith.core.suggestions import nearest


class NotBuiltError(ImportError):
    """A name of tinygrad's that Tinsmith does not have, or does not have yet."""


def missing(module: str, name: str) -> NotBuiltError:
    """Return the error for an unknown name, with the closest known name or the replacement."""
    close = nearest(name, {*MODULES.get(module, ()), *_below(module)} - {name}, least=0.8)
    meant = f"did you mean {close}? Or " if close else ""
    reason = REASONS.get(name) or f"Tinsmith has no such name; {meant}for what {module} has: {place(module)}"
    return NotBuiltError(f"cannot import {name!r} from {module!r}: {reason}. docs/rosetta.md says what tinygrad's "
                         "names are here", name=module)


def _below(module: str) -> list[str]:
    """The modules right below one."""
    parts = (m.rpartition(".") for m in (*MODULES, *PLACES))
    return sorted({last for parent, _, last in parts if parent == module})


def _anywhere(name: str) -> str:
    """Return the table entry of a name in any module, if all agree ("" otherwise): tinygrad moved names."""
    places = {table[name] for table in MODULES.values() if name in table}
    return places.pop() if len(places) == 1 else ""


class CompatModule(ModuleType):
    """A module whose names are looked up in its table when they are first used."""

    def __getattr__(self, name: str) -> Any:
        inside = f"{self.__name__}.{name}"
        found = MODULES.get(self.__name__, {}).get(name)
        if found is None and (inside in MODULES or inside in PLACES):
            return importlib.import_module(inside)
        if found is None and name.startswith("__"):
            raise AttributeError(f"module {self.__name__!r} has no attribute {name!r}")
        found = found or _anywhere(name)
        if not found:
            raise missing(self.__name__, name)
        module, _, attribute = found.partition(":")
        try:
            owner, _, key = attribute.partition(".")
            value = getattr(importlib.import_module(module), owner)
            value = value[key] if key else value
        except (AttributeError, ModuleNotFoundError):
            raise missing(self.__name__, name) from None
        setattr(self, name, value)
        return value

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """Call the function of the module's name: ``tinygrad.function`` is both a module and a function."""
        return getattr(self, self.__name__.rpartition(".")[2])(*args, **kwargs)

    def __dir__(self) -> list[str]:
        return sorted({*MODULES.get(self.__name__, ()), *_below(self.__name__)})


class Finder(importlib.abc.MetaPathFinder, importlib.abc.Loader):
    """The import hook that finds ``tinygrad`` and its submodules in the tables."""

    def find_spec(self, fullname: str, path: Sequence[str] | None = None,
                  target: ModuleType | None = None) -> importlib.machinery.ModuleSpec | None:
        if fullname.partition(".")[0] != "tinygrad":
            return None
        if fullname not in MODULES and fullname not in PLACES:
            parent, _, last = fullname.rpartition(".")
            raise missing(parent, last)
        return importlib.machinery.ModuleSpec(fullname, self, origin="tinsmith.compat", is_package=True)

    def create_module(self, spec: importlib.machinery.ModuleSpec) -> ModuleType:
        return CompatModule(spec.name, f"{spec.name} as tinsmith.compat.name_table maps it.")

    def exec_module(self, module: ModuleType) -> None:
        module.__dict__["__all__"] = [n for n in MODULES.get(module.__name__, ()) if n not in REASONS and n[0] != "_"]


_finder = Finder()


def install() -> None:
    """Make ``import tinygrad`` load Tinsmith from now on, and map the tutorials' device names to ours (``ALIAS``)."""
    if _finder not in sys.meta_path:
        sys.meta_path.insert(0, _finder)
    _forget()
    adopt()
    tell_unread()
    from_environment()
    named = {part.partition("=")[0] for part in settings.ALIAS.upper().split(",")}
    more = [f"{old}={new}" for old, new in DEVICES.items() if old not in named]
    settings.ALIAS = ",".join([*filter(None, [settings.ALIAS]), *more])
    os.environ["ALIAS"] = settings.ALIAS  # other threads and child processes read it there
    chosen = next((name for name in DEVICE_VARIABLES if os.environ.get(name) == "1"), None)
    if chosen is not None and not settings.DEV:
        settings.DEV = os.environ["DEV"] = chosen


def uninstall() -> None:
    """Undo ``install`` for ``import tinygrad``; the mapping of device names stays."""
    if _finder in sys.meta_path:
        sys.meta_path.remove(_finder)
        drop()
    _forget()


def _forget() -> None:
    for name in [n for n in sys.modules if n.partition(".")[0] == "tinygrad"]:
        del sys.modules[name]
