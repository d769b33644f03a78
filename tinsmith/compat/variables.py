"""tinygrad's context variables and device protocol.

A context variable is a Tinsmith setting, a Tinsmith state, or a hint to the replacement. In the device protocol,
allocators have ``_alloc`` and ``_copyin``, and devices have four or five parts. Memory is copied completely, a compiler
may write the source, and a program is made of a name and a binary and called with blocks of memory.
"""
from __future__ import annotations

import contextlib
import functools
import inspect
import os
from collections.abc import Callable, Sequence
from typing import Any, Final

from tinsmith.backend import device as ours
from tinsmith.backend.memory import Buffer, BufferSpec
from tinsmith.codegen.launch import Launch
from tinsmith.codegen.render.base import Renderer
from tinsmith.core.dtypes import dtypes, to_dtype
from tinsmith.core.errors import ArgumentError
from tinsmith.core.settings import DECLARED, ELSEWHERE, settings, tell
from tinsmith.core.settings import Context as _settings_context
from tinsmith.core.suggestions import nearest
from tinsmith.ir import UOp
from tinsmith.target.target import Target
from tinsmith.tensor.tensor import Tensor


@functools.cache
def getenv(key: str, default: Any = 0) -> Any:
    """Return the environment variable ``key`` converted to the type of ``default``; read once.

    Empty text is 0 if the default is a number.

    Raises:
        ArgumentError: if the text is not a number.
    """
    kind, text = type(default), os.environ.get(key)
    if text is None:
        return kind(default)
    try:
        return kind(text or 0) if kind in (int, float) else kind(text)
    except ValueError:
        raise ArgumentError("getenv", f"{key}={text!r} is not a number", f"{key}={default}") from None


def _set_training(value: Any) -> None:
    Tensor.training = bool(int(value))


def _set_float(value: Any) -> None:
    dtypes.default_float = to_dtype(str(value).lower())


def _set_int(value: Any) -> None:
    dtypes.default_int = to_dtype(str(value).lower())

# Variables that are a state of ours: how it is read, and how it is set.
STATES: Final[dict[str, tuple[Callable[[], Any], Callable[[Any], None]]]] = {
    "TRAINING": (lambda: int(Tensor.training), _set_training),
    "DEFAULT_FLOAT": (lambda: dtypes.default_float.name, _set_float),
    "DEFAULT_INT": (lambda: dtypes.default_int.name, _set_int)}
_DECLARED: Final = {s.name for s in DECLARED}


class ContextVar:
    """A setting of a script: ours where we have one of that name, else a value that only the script reads."""

    known: dict[str, ContextVar] = {}

    def __init__(self, key: str, default_value: Any, read: bool = True) -> None:
        self.key = key
        ours = key in STATES or key in _DECLARED
        self._own = default_value if ours or not read else getenv(key, default_value)
        ContextVar.known.setdefault(key, self)

    @property
    def value(self) -> Any:
        if self.key in STATES:
            return STATES[self.key][0]()
        return getattr(settings, self.key) if self.key in _DECLARED else self._own

    @value.setter
    def value(self, new: Any) -> None:
        if self.key in STATES:
            STATES[self.key][1](new)
        elif self.key in _DECLARED:
            setattr(settings, self.key, new)
        else:
            tell(self.key, str(new))
            self._own = new

    def __bool__(self) -> bool:
        return bool(self.value)

    def __int__(self) -> int:
        return int(self.value)

    def __eq__(self, other: object) -> bool:
        return bool(self.value == other)

    def __ge__(self, other: Any) -> bool:
        return bool(self.value >= other)

    def __gt__(self, other: Any) -> bool:
        return bool(self.value > other)

    def __lt__(self, other: Any) -> bool:
        return bool(self.value < other)

    def __le__(self, other: Any) -> bool:
        return bool(self.value <= other)

    def __hash__(self) -> int:
        return hash(self.key)

    def __str__(self) -> str:
        return str(self.value)

    def __repr__(self) -> str:
        return f"ContextVar({self.key!r}, {self.value!r})"


def _defaults() -> dict[str, Any]:
    """Return every variable that tinygrad documents or its programs set, with its default value."""
    own = {s.name: s.default for s in DECLARED}
    return {**own, "DEFAULT_FLOAT": "float32", "DEFAULT_INT": "int32", "TRAINING": 0}


def _unread(name: str, default: str) -> ContextVar:
    """Return a variable without effect here. A non-numeric value was likely meant for another program."""
    number = default.lstrip("-").isdigit()
    found = ContextVar(name, int(default) if number else default, read=False)
    text = os.environ.get(name, "")
    if text and (not number or text.lstrip("-").isdigit()):
        found._own = int(text) if number else text
    return found


class _Dev(ContextVar):
    """The default device as tinygrad reads it, ``[interface+]device[:renderer[:arch]]``; a device's number is no part.

    >>> dev = _Dev("DEV", "")
    >>> with Context(DEV="CPU:1:C"):
    ...     dev.device, dev.renderer, dev.arch, dev.interface
    ('CPU', 'C', '', '')
    """

    def _parts(self) -> tuple[str, str, str, str]:
        interface, _, rest = str(self.value).upper().rpartition("+")
        device, renderer, arch, *_ = *(p for p in rest.split(":") if not p.isdigit()), "", "", ""
        return interface, device, renderer, arch.lower()

    @property
    def interface(self) -> str:
        return self._parts()[0]

    @property
    def device(self) -> str:
        return self._parts()[1]

    @property
    def renderer(self) -> str:
        return self._parts()[2]

    @property
    def arch(self) -> str:
        return self._parts()[3]

VARIABLES: Final = {**{name: ContextVar(name, value) for name, value in _defaults().items()},
                    "DEV": _Dev("DEV", ""),
                    **{name: _unread(name, default) for name, (default, _) in ELSEWHERE.items()}}


def from_environment() -> None:
    """Set Tinsmith states from their environment variables."""
    for name, (_, set_to) in STATES.items():
        if os.environ.get(name):
            set_to(os.environ[name])


class Context(contextlib.ContextDecorator):
    """Change settings inside a ``with`` block; variables that only tinygrad has can be read by the script only.

    >>> with Context(TRAINING=1, DEFAULT_FLOAT="HALF"):
    ...     Tensor.training, dtypes.default_float
    (True, dtypes.half)

    Raises:
        ArgumentError: for a name that is a setting of neither.
    """

    def __init__(self, **changes: Any) -> None:
        self.changes, self.stack = changes, contextlib.ExitStack()

    def __enter__(self) -> None:
        for name in self.changes:
            if name not in ContextVar.known:
                close = nearest(name, ContextVar.known)
                raise ArgumentError("Context", f"unknown setting {name!r}", f"did you mean {close}=?" if close else
                                    "one that the README lists; docs/api.md has those of tinygrad's")
        ours = {k: v for k, v in self.changes.items() if k in _DECLARED}
        self.stack.enter_context(_settings_context(**ours))
        for name in self.changes.keys() - ours.keys():
            variable = ContextVar.known[name]
            self.stack.callback(_restore, variable, variable.value)
            variable.value = self.changes[name]

    def __exit__(self, *error: object) -> None:
        self.stack.close()


def _restore(variable: ContextVar, value: Any) -> None:
    if variable.key in STATES:
        variable.value = value
    else:
        variable._own = value

_NO_WISHES = BufferSpec()


class Allocator(ours.Allocator):
    """Memory by tinygrad's methods: ``_alloc(size, options)``, ``_copyin(dest, src)``, ``_copyout(dest, src)`` and
    ``_free(opaque, options)``. A subclass may have ours instead, which take the byte to begin at."""

    def __init_subclass__(cls, **kwargs: Any) -> None:
        """Rename a subclass's ``copyin(dest, src)`` and ``copyout(dest, src)`` of 2024 to ``_copyin``, ``_copyout``."""
        super().__init_subclass__(**kwargs)
        for name in ("copyin", "copyout"):
            own = vars(cls).get(name)
            if own is not None and len(inspect.signature(own).parameters) == 3:  # with self
                setattr(cls, f"_{name}", own)
                delattr(cls, name)

    def __init__(self, dev: Any = None, **_: Any) -> None:
        self.dev = dev
        self._blocks: dict[int, tuple[Any, int]] = {}  # each block that is in use, and its bytes

    def _alloc(self, size: int, options: BufferSpec) -> Any:
        raise NotImplementedError("_alloc")

    def _free(self, opaque: Any, options: BufferSpec) -> None:
        """Free a block."""

    def _copyin(self, dest: Any, src: memoryview) -> None:
        raise NotImplementedError("_copyin")

    def _copyout(self, dest: memoryview, src: Any) -> None:
        raise NotImplementedError("_copyout")

    def alloc(self, nbytes: int) -> Any:
        return self.alloc_as(nbytes, _NO_WISHES)

    def alloc_as(self, nbytes: int, options: BufferSpec) -> Any:
        if type(self).alloc is not Allocator.alloc:
            return self.alloc(nbytes)
        block = self._alloc(nbytes, options)
        self._known()[id(block)] = block, nbytes
        return block

    def free(self, opaque: Any) -> None:
        if self._known().pop(id(opaque), None) is not None:
            self._free(opaque, _NO_WISHES)

    def copyin(self, opaque: Any, offset: int, source: memoryview) -> None:
        """Write ``source`` at ``offset`` of a block; less than a full block is read, modified and written back."""
        if self._is_all_of(opaque, offset, source.nbytes):
            return self._copyin(opaque, source)
        whole = self._whole(opaque)
        whole[offset : offset + source.nbytes] = source.cast("B")
        return self._copyin(opaque, memoryview(whole))

    def copyout(self, target: memoryview, opaque: Any, offset: int) -> None:
        """Read bytes at ``offset`` of a block into ``target``; less than a full block is cut from a full read."""
        if self._is_all_of(opaque, offset, target.nbytes):
            return self._copyout(target, opaque)
        target.cast("B")[:] = memoryview(self._whole(opaque))[offset : offset + target.nbytes]
        return None

    def _known(self) -> dict[int, tuple[Any, int]]:
        """Return the blocks in use, also for a subclass whose ``__init__`` does not call this one's."""
        found: dict[int, tuple[Any, int]] = vars(self).setdefault("_blocks", {})
        return found

    def _bytes(self, opaque: Any) -> int:
        return self._known()[id(opaque)][1]

    def _is_all_of(self, opaque: Any, offset: int, nbytes: int) -> bool:
        return offset == 0 and nbytes == self._bytes(opaque)

    def _whole(self, opaque: Any) -> bytearray:
        out = bytearray(self._bytes(opaque))
        self._copyout(memoryview(out), opaque)
        return out


class _Source(Renderer):
    """A ``Renderer`` over a compiler object of the tutorials, whose ``render(name, uops)`` returns the source."""

    def __init__(self, target: Target, compiler: Any) -> None:
        super().__init__(target)
        self.compiler = compiler

    def render(self, name: str, program: Sequence[UOp]) -> str:
        text: str = self.compiler.render(name, program)
        return text


class _Program(ours.Program):
    """A program constructed from a name and a binary, and called with blocks of memory."""

    def __init__(self, device: Compiled, make: Callable[..., Any], kernel: Launch, binary: bytes) -> None:
        super().__init__(kernel, binary)
        self.device, self.inner = device, make(kernel.symbol, binary)

    def __call__(self, buffers: Sequence[Buffer], variables: Sequence[int] = ()) -> None:
        sizes = {"global_size": _three(self.kernel.grid), "local_size": _three(self.kernel.block)}
        sizes = sizes if self.kernel.grid else {}
        parts = [self.device.part(b) for b in buffers]
        self.inner(*(block for block, _ in parts), vals=tuple(variables), **sizes)
        for buffer, (block, borrowed) in zip(buffers, parts):
            if borrowed:
                self.device.put_back(buffer, block)


def _three(sizes: Sequence[int]) -> tuple[int, ...]:
    return (*sizes, *[1] * (3 - len(sizes)))


class Compiled(ours.Compiled):
    """A Tinsmith device, or one of tinygrad's form: (name, allocator, compiler, runtime) with a compiler that writes
    the source by ``render(name, uops)``; or (name, allocator, renderer, compiler, runtime) with a Tinsmith renderer.

    A device of tinygrad's calls ``runtime(name, binary)``, and what that returns with the blocks of memory, the values
    of variables as ``vals=``, and ``global_size=`` and ``local_size=`` where the kernel has threads.
    """

    def __init__(self, device: str, allocator: Any, compiler: Any, runtime: Any, *others: Any, renderer: Any = None,
                 **unknown: Any) -> None:
        if isinstance(compiler, (list, tuple)) or unknown:
            raise ArgumentError("Compiled", "a list of renderers and a program made of a TinyELF are not known here",
                                "Compiled(device, allocator, renderer, compiler, runtime): docs/new_accelerator.md")
        theirs = True
        if isinstance(compiler, Renderer):
            renderer, compiler, runtime = compiler, runtime, others[0]
        elif callable(getattr(compiler, "render", None)):
            renderer = _Source(Target(device.split(":")[0].lower()), compiler)
        else:
            theirs, renderer = False, next(iter(others), renderer)
        super().__init__(device, allocator, compiler, self._made_by(runtime) if theirs else runtime, renderer)

    def _made_by(self, runtime: Callable[..., Any]) -> Callable[[Launch, bytes], ours.Program]:
        return lambda kernel, binary: _Program(self, runtime, kernel, binary)

    def part(self, buffer: Buffer) -> tuple[Any, bool]:
        """Return (block, is a copy) for a buffer: a view at an offset is copied if the allocator has no ``_offset``."""
        block, offset = buffer.opaque, buffer.offset
        allocator: Any = self.allocator
        if not offset:
            return block, False
        if hasattr(allocator, "_offset"):
            return allocator._offset(block, buffer.nbytes, offset), False
        data = bytearray(buffer.nbytes)
        allocator.copyout(memoryview(data), block, offset)
        copied = allocator.alloc(buffer.nbytes)
        allocator.copyin(copied, 0, memoryview(data))
        return copied, True

    def put_back(self, buffer: Buffer, block: Any) -> None:
        """Write a copy that ``part`` made back to ``buffer``, and free it."""
        data = bytearray(buffer.nbytes)
        self.allocator.copyout(memoryview(data), block, 0)
        self.allocator.copyin(buffer.opaque, buffer.offset, memoryview(data))
        self.allocator.free(block)
