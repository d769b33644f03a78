"""Unknown names and keywords: errors that suggest the intended one, and translation of PyTorch's argument names."""
from __future__ import annotations

import difflib
import functools
import inspect
import itertools
import linecache
import sys
from collections.abc import Callable, Iterable
from types import ModuleType, TracebackType
from typing import Any, Final, TypeVar

from tinsmith.core.errors import KeywordError, UnknownNameError

T = TypeVar("T")

converters: Final[list[Callable[[Any], Any]]] = []  # applied to the arguments of all calls, mostly none
_OF_INSTANCES: Final = ("__init__", "__call__")  # methods that errors name by their class

# PyTorch's argument name → our names with the same meaning; translated silently.
_PYTORCH: Final = {
    "other": ("x",), "exponent": ("x",), "vec2": ("x",), "tensor": ("w",), "y": ("other",), "B": ("other",),
    "input2": ("factor", "other"), "size": ("shape", "dims"), "dims": ("axes",), "dimension": ("dim",),
    "dim0": ("axis0",), "dim1": ("axis1",), "indices": ("indices_or_sections",), "sections": ("indices_or_sections",),
    "tensor_indices_or_sections": ("indices_or_sections",), "split_size": ("sizes",), "split_sizes": ("sizes",),
    "split_size_or_sections": ("sizes",), "value": ("src",), "end": ("stop",), "ord": ("p",), "sorted": ("sorted_",),
    "rcond": ("rtol",), "tol": ("rtol",), "negative_slope": ("neg_slope",), "pad": ("padding",), "target": ("Y",),
    "test_element": ("test_elements",), "num_features": ("sz",), "num_embeddings": ("vocab_size",),
    "embedding_dim": ("embed_size",), "normalized_shape": ("dim",), "from": ("low", "a"), "to": ("high", "b")}
# Keywords that affect only how a result is computed, and are ignored.
_NEEDLESS: Final = frozenset((
    "non_blocking", "memory_format", "pin_memory", "sparse_grad", "assume_unique", "driver", "compute_mode",
    "set_to_none", "foreach", "fused", "capturable", "persistent_workers"))
# Other libraries' keyword → ours: suggested in the error but not translated, since the values may differ.
_ELSEWHERE: Final = {
    "learning_rate": ("lr",), "betas": ("b1", "b2"), "beta_1": ("b1",), "beta_2": ("b2",), "epsilon": ("eps",),
    "decay": ("weight_decay",), "parameters": ("params",), "var_list": ("params",), "normalized_shape": ("axis",),
    "min_value": ("min_val",), "max_value": ("max_val",), "adjust_lr_fn": ("adjust_lr",)}
_NONE: Final = "nothing: leave it out"


def _each(names: str, mend: str) -> dict[str, str]:
    return dict.fromkeys(names.split(), mend)


# PyTorch keywords without a counterpart → what to use instead.
_INSTEAD: Final = {
    **_each("size_average reduce", 'reduction="mean", "sum" or "none"'),
    **_each("foreach fused capturable", f"{_NONE}; a step is one program"),
    "differentiable": "loss.gradient(...), and a step written with it",
    "inplace": f"{_NONE}; a method whose name ends in _ writes to its tensor",
    "device": "Device.DEFAULT = device before, or p.to_(device) for p in nn.state.get_parameters(layer)",
    "dtype": "dtypes.default_float = dtype before, or .cast(dtype) behind",
    "last_epoch": "nn.state.save and load with scheduler=: the schedule goes on",
    "training": "with Tensor.train(): trains, and nothing else does",
    **_each("_stacklevel enable_nested_tensor mask_check layout", _NONE),
    "padding_mode": f"{_NONE}; PyTorch's takes 'zeros' alone",
    "proj_size": "nn.LSTM, which has it, or nn.Linear behind",
    "generator": "Tensor.manual_seed(seed)",
    "out": "x.assign(result)",
    **_each("max_norm norm_type", "rows scaled by hand: w * (max_norm / w.norm(2, -1, keepdim=True)).minimum(1)"),
    "scale_grad_by_freq": "a loss divided by the counts of its indices, index.bincount()",
    **_each("sparse _weight _freeze", "layer.weight, which may be assigned and have requires_grad=False"),
    "weight": 'reduction="none", and a product with the weights',
    "return_complex": f"{_NONE}; complex numbers are pairs along a last axis of size 2",
    "antialias": "a mean before: x.avg_pool2d(kernel_size)",
    **_each("kernel_size dilation padding stride", "x.unfold(dim, size, step), once for each axis"),
    "eps": f"{_NONE}; there is a smallest number already",
}


def nearest(name: str, known: Iterable[str], least: float = 0.6) -> str:
    """Return the name in ``known`` closest to ``name``; "" if the similarity is below ``least`` (1: identical).

    >>> nearest("axsi", ["axis", "keepdim"]), nearest("colour", ["axis", "keepdim"])
    ('axis', '')
    """
    return next(iter(difflib.get_close_matches(name, list(known), n=1, cutoff=least)), "")


def unknown(owner: str, name: str, known: Iterable[str]) -> Any:
    """Return the error for an attribute that ``owner`` does not have, with a suggestion.

    >>> print(unknown("dtypes", "flaot32", ["float32", "int32"]).mend)
    did you mean dtypes.float32?
    """
    if name.startswith("_"):  # probed by Python and other libraries, no user's typo
        return AttributeError(f"{owner} has no attribute {name!r}", name=name)
    known = [k for k in known if not k.startswith("_")]
    close = nearest(name, known)
    few = f"one of {', '.join(sorted(known))}" if len(known) <= 30 else f"dir({owner})"
    return UnknownNameError(owner, f"no attribute {name!r}", f"did you mean {owner}.{close}?" if close else few)


def missing_attribute(of: object, name: str) -> Any:
    """Raise the error for an attribute that ``of``, an instance of a guided class, lacks: the body of ``__getattr__``.

    Raises:
        UnknownNameError: naming the attribute that was meant.
        AttributeError: the original one, where an attribute of that name failed.
    """
    kind = type(of)
    if hasattr(kind, name):
        return object.__getattribute__(of, name)
    raise unknown(kind.__name__, name, dir(kind))


def guide(*owners: type | ModuleType) -> None:
    """Make the public names of classes and modules report unknown attributes and keywords with suggestions; ``dir`` of
    a module shows its public names."""
    for owner in owners:
        if isinstance(owner, ModuleType):
            vars(owner).setdefault("__getattr__", functools.partial(_no_name, owner))
            vars(owner).setdefault("__dir__", functools.partial(public, owner))
        for name, value in list(vars(owner).items()):
            kind = type(value)
            base = isinstance(owner, ModuleType) and kind is type  # public classes inherit its __init__
            if name.startswith("_") and name not in _OF_INSTANCES and not base:
                continue
            if kind in (staticmethod, classmethod):
                setattr(owner, name, kind(guided(value.__func__)))
            elif callable(value) and hasattr(value, "__code__") and value.__module__ == _module(owner):
                if not inspect.unwrap(value).__code__.co_flags & inspect.CO_VARKEYWORDS:  # it takes any keyword
                    setattr(owner, name, guided(value))
            elif isinstance(owner, ModuleType) and kind is type and value.__module__ == owner.__name__:
                guide(value)


def public(module: ModuleType) -> list[str]:
    """Return the names that ``dir`` shows of a module: ``__all__`` or the names it defines, and Python's own names.

    >>> import json
    >>> [name for name in public(json) if not name.startswith("__")][3:]
    ['dump', 'dumps', 'load', 'loads']
    """
    names = vars(module).get("__all__") or [
        n for n, v in vars(module).items() if not n.startswith("_") and getattr(v, "__module__", "") == module.__name__]
    return sorted({*names, *(n for n in vars(module) if n.startswith("__"))})


def _no_name(module: ModuleType, name: str) -> Any:
    owner, absent = module.__name__.removeprefix("tinsmith."), vars(module).get("ABSENT", {})
    if name in absent:
        raise UnknownNameError(owner, f"no attribute {name!r}", absent[name])
    raise unknown(owner, name, dir(module))


def _module(owner: type | ModuleType) -> str:
    return owner.__name__ if isinstance(owner, ModuleType) else owner.__module__


def guided(function: Callable[..., T]) -> Callable[..., T]:
    """Wrap ``function`` so that it also accepts PyTorch's argument names, and lists its keywords if one is unknown.

    >>> def area(width, height=1):
    ...     return width * height
    >>> try:
    ...     guided(area)(2, hieght=3)
    ... except KeywordError as error:
    ...     print(error.op, error.message, error.mend)
    area no argument 'hieght' did you mean height=?
    >>> def spread(x, stop):
    ...     return x, stop
    >>> guided(spread)(2, end=3)
    (2, 3)
    """
    has_self = function.__name__ in _OF_INSTANCES

    def call(*args: Any, **keywords: Any) -> T:
        if converters:
            args, keywords = converters[-1](args), converters[-1](keywords)
        try:
            return function(*args, **keywords)
        except TypeError:
            args, keywords = _translated(function, args, keywords)
        return function(*args, **keywords)

    def init(self: Any, /, *args: Any, **keywords: Any) -> T:
        if converters:
            args, keywords = converters[-1](args), converters[-1](keywords)
        try:
            return function(self, *args, **keywords)
        except TypeError:
            args, keywords = _translated(function, (self, *args), keywords)
        return function(*args, **keywords)

    found: Any = functools.wraps(function)(init if has_self else call)
    found.__code__ = found.__code__.replace(co_name=function.__name__)  # nodes and errors show the user's name
    made: Callable[..., T] = found
    return made


def _translated(function: Callable[..., Any], args: tuple[Any, ...], keywords: dict[str, Any]
                ) -> tuple[tuple[Any, ...], dict[str, Any]]:
    """Return the arguments of a failed call, with keywords translated to our names.

    Raises:
        KeywordError: if the function has no such keyword.
        TypeError: re-raised from the failed call, if no keyword was wrong.
    """
    while hasattr(function, "__wrapped__"):
        function = function.__wrapped__
    code = function.__code__
    known = code.co_varnames[code.co_posonlyargcount : code.co_argcount + code.co_kwonlyargcount]
    wrong = [k for k in keywords if k not in known]
    if not wrong or code.co_flags & inspect.CO_VARKEYWORDS:
        raise
    rest = code.co_varnames[len(known) + code.co_posonlyargcount] if code.co_flags & inspect.CO_VARARGS else ""
    free = {*known[max(0, len(args) - code.co_posonlyargcount):]} - {*keywords}
    if rest and len(args) <= code.co_argcount:
        free.add(rest)
    found = {k: v for k, v in keywords.items() if k in known}
    for keyword in wrong:
        ours = next((n for n in (keyword, *_PYTORCH.get(keyword, ())) if n in free), "")
        if ours and ours == rest:
            args = (*args, keywords[keyword])
        elif ours:
            found[ours] = keywords[keyword]
        elif keyword not in _NEEDLESS:
            raise _no_keyword(function, args, keyword, known) from None
        free.discard(ours)
    return args, found


def _no_keyword(function: Callable[..., Any], args: tuple[Any, ...], wrong: str, known: tuple[str, ...]
                ) -> KeywordError:
    name = type(args[0]).__name__ if function.__name__ in _OF_INSTANCES else function.__name__
    close = "=, ".join(k for k in _ELSEWHERE.get(wrong, ()) if k in known)
    if not close and wrong not in _INSTEAD:
        close = nearest(wrong, known)
    takes = ", ".join(k for k in known if k not in ("self", "cls")) or "no keywords"
    mend = f"did you mean {close}=?" if close else _INSTEAD.get(wrong, takes)
    return KeywordError(name, f"no argument {wrong!r}", mend)


def hint_at_gradients() -> None:
    """Add a note to each uncaught error of a name looked up in a ``.grad`` that is None: ``x.grad.numpy()``."""
    before = sys.excepthook

    def noted(kind: type[BaseException], error: BaseException, trace: TracebackType | None) -> None:
        if isinstance(error, AttributeError) and error.obj is None and trace is not None:
            read = _failed_expression(trace).removesuffix(f".{error.name}")
            if read.endswith(".grad"):
                error.add_note(f"{read} is None: no backward() has filled it. Try: loss.backward() before, with a loss "
                               "that is computed from it")
        before(kind, error, trace)

    sys.excepthook = noted


def _failed_expression(trace: TracebackType) -> str:
    """Return the source text of the expression that raised an error; empty if it is not known or has several lines."""
    while trace.tb_next is not None:
        trace = trace.tb_next
    code = trace.tb_frame.f_code
    line, last, begin, end = next(itertools.islice(code.co_positions(), trace.tb_lasti // 2, None))
    if line is None or line != last or begin is None:
        return ""
    return linecache.getline(code.co_filename, line).encode()[begin:end].decode()
