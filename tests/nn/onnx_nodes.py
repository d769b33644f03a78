"""Runner of the node tests of the ONNX standard: ``python -m tests.nn.onnx_nodes`` counts those that pass."""
from __future__ import annotations

import argparse
import collections
import sys
import time
import warnings
from pathlib import Path
from typing import Any

import numpy as np
import onnx
from onnx import numpy_helper

from tinsmith import Tensor
from tinsmith.nn.onnx import OnnxRunner

warnings.simplefilter("ignore")


def cases() -> list[Any]:
    """Return all node tests, in the standard's order."""
    from onnx.backend.test.loader import load_model_tests

    with np.errstate(all="ignore"):
        return list(load_model_tests(kind="node"))


def parts(case: Any) -> tuple[Any, list[tuple[list[Any], list[Any]]]]:
    """Return a case's model, and pairs of inputs and expected outputs."""
    if case.model is not None:
        return case.model, list(case.data_sets)
    folder = Path(case.model_dir)
    sets = []
    for data in sorted(folder.glob("test_data_set_*")):
        sets.append(tuple([_read(p) for p in sorted(data.glob(f"{kind}_*.pb"))] for kind in ("input", "output")))
    return onnx.load(folder / "model.onnx"), sets  # type: ignore[return-value]


def _read(path: Path) -> Any:
    return numpy_helper.to_array(onnx.TensorProto.FromString(path.read_bytes()))


def _plain(value: Any) -> Any:
    """Return a case's value as NumPy's; types that NumPy lacks are given as protobuf."""
    if isinstance(value, list):
        return [_plain(v) for v in value]
    return numpy_helper.to_array(value) if isinstance(value, onnx.TensorProto) else value


def array_of(value: Any, kind: Any) -> Any:
    """Return an output as a NumPy array, in the model's element type where ours is wider."""
    if isinstance(value, list):
        return [array_of(v, kind.sequence_type.elem_type) for v in value]
    if isinstance(value, Tensor):
        array = value.numpy()
        number = kind.tensor_type.elem_type or kind.optional_type.elem_type.tensor_type.elem_type
        if number in (21, 22, 23, 24, 25, 26):
            array = array.astype(onnx.helper.tensor_dtype_to_np_dtype(number))
        return array
    return value


def check(case: Any) -> None:
    """Raise unless the model gives what the standard expects."""
    model, sets = parts(case)
    runner = OnnxRunner(model)
    for inputs, wanted in sets:
        names = [i.name for i in model.graph.input]
        inputs, wanted = ([_plain(v) for v in values] for values in (inputs, wanted))
        found = runner(dict(zip(names, inputs)))
        for output, want in zip(model.graph.output, wanted):
            same(array_of(found[output.name], output.type), want, case)


def same(got: Any, want: Any, case: Any) -> None:
    if isinstance(want, list):
        assert isinstance(got, list) and len(got) == len(want), f"a sequence of {len(want)}"
        for g, w in zip(got, want):
            same(g, w, case)
        return
    if want is None or getattr(want, "dtype", None) is None:
        assert got is want or np.array_equal(got, want), f"{got} instead of {want}"
        return
    got = np.asarray(got)
    if want.dtype.kind in "OSUT":
        assert got.shape == want.shape and got.astype(str).tolist() == want.astype(str).tolist()
        return
    assert got.dtype == want.dtype, f"of dtype {got.dtype} instead of {want.dtype}"
    assert got.shape == want.shape, f"of shape {got.shape} instead of {want.shape}"
    exact = want.dtype.kind in "iub"
    rtol = case.rtol if exact or want.dtype.itemsize > 2 else max(case.rtol, 1e-2)
    if want.dtype.kind == "V" or (want.dtype.name.startswith(("float", "int", "uint")) and want.dtype.itemsize == 1):
        got, want = got.astype(np.float64), want.astype(np.float64)
    if not exact:
        got, want = got.astype(np.float64), want.astype(np.float64)
    np.testing.assert_allclose(got, want, rtol=rtol, atol=case.atol)


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.nn.onnx_nodes", description=__doc__)
    parser.add_argument("pattern", nargs="?", default="", help="a part of the names to run")
    parser.add_argument("--names", action="store_true", help="print a line for each that fails")
    given = parser.parse_args()
    failed: dict[str, str] = {}
    begin, count = time.monotonic(), 0
    for case in cases():
        if given.pattern not in case.name:
            continue
        count += 1
        try:
            check(case)
        except Exception as error:
            failed[case.name] = f"{type(error).__name__}: {' '.join(str(error).split())[:150]}"
            if given.names:
                print(f"{case.name}: {failed[case.name]}", flush=True)
    kinds = collections.Counter(message.split(" (")[0][:90] for message in failed.values())
    for message, n in kinds.most_common(40):
        print(f"{n:5d}  {message}")
    print(f"{count - len(failed)} of {count} pass, {time.monotonic() - begin:.0f} s, onnx {onnx.__version__}")
    return 0


if __name__ == "__main__":
    sys.exit(main())


