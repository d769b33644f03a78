"""GGUF files: every quantized type against the package ``gguf``, and kernels that dequantize what they read."""
from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tinsmith import GlobalCounters, Tensor, TinyJit, dtypes
from tinsmith.core.errors import FileFormatError
from tinsmith.nn.io.ggml import KINDS, unpacked
from tinsmith.nn.io.gguf_header import TYPES
from tinsmith.nn.state import gguf_load

gguf = pytest.importorskip("gguf", reason="pip install 'tinsmith[gguf]'")
RNG = np.random.default_rng(0)


def written(path: Path, tensors: dict[str, Any], **numbers: int) -> str:
    """Return a file with tensors: arrays, or (bytes of blocks ``[rows, nbytes]``, name of the type)."""
    writer = gguf.GGUFWriter(str(path), "llama")
    for name, number in numbers.items():
        writer.add_uint32(name, number)
    writer.add_array("names", ["a", "b"])
    for name, value in tensors.items():
        if isinstance(value, tuple):
            writer.add_tensor(name, value[0], raw_dtype=gguf.GGMLQuantizationType[value[1]])
        else:
            writer.add_tensor(name, value)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return str(path)


def blocks(kind: str, count: int) -> np.ndarray:
    """Return random bytes: scales of any size, NaN and infinity included."""
    return RNG.integers(0, 256, (count, KINDS[kind].nbytes)).astype(np.uint8)


def test_plain_numbers_and_metadata(tmp_path: Path) -> None:
    plain = np.arange(12, dtype=np.float32).reshape(3, 4)
    arrays = {"plain": plain, "half": plain.astype(np.float16), "int": plain.astype(np.int32),
              "byte": plain.astype(np.int8), "double": plain.astype(np.float64)}
    rounded = (plain.view(np.uint32) >> 16).astype(np.uint16).view(np.uint8)
    path = written(tmp_path / "x.gguf", {**arrays, "brain": (rounded, "BF16")}, **{"llama.block_count": 2})
    for source in (path, Path(path), Tensor(Path(path))):
        metadata, tensors = gguf_load(source)
        assert metadata["llama.block_count"] == 2 and metadata["names"] == ["a", "b"]
        for name, array in arrays.items():
            assert tensors[name].dtype.numpy == array.dtype and np.array_equal(tensors[name].numpy(), array)
        assert tensors["brain"].dtype is dtypes.bfloat16 and np.array_equal(tensors["brain"].float().numpy(), plain)


@pytest.mark.parametrize("kind", sorted(KINDS))
def test_a_quantized_type_is_what_the_package_says(kind: str) -> None:
    packed = blocks(kind, 5)
    with np.errstate(all="ignore"):
        if kind == "Q8_K":  # the package has the sizes only: a factor, 256 bytes, and their sums, which nobody reads
            want = packed[:, :4].copy().view(np.float32) * packed[:, 4:260].view(np.int8)
        else:
            want = gguf.quants.dequantize(packed, gguf.GGMLQuantizationType[kind])
    size, nbytes, _ = KINDS[kind]
    assert (size, nbytes) == gguf.GGML_QUANT_SIZES[gguf.GGMLQuantizationType[kind]]
    got = unpacked(Tensor(packed), kind).numpy().reshape(want.shape)
    np.testing.assert_allclose(got, want, rtol=1e-6)


def test_every_type_of_the_package_is_here() -> None:
    named = {t.value: t.name for t in gguf.GGMLQuantizationType}
    assert {number: named[number] for number in TYPES} == TYPES
    plain = {"BF16", "F16", "F32"}
    assert {t.name for t in gguf.quants._type_traits} - plain <= KINDS.keys()


def test_quantized_weights_stay_packed(tmp_path: Path) -> None:
    """A product reads the packed bytes: it allocates memory only for its result and the scales."""
    kind = gguf.GGMLQuantizationType.Q8_0
    rough = RNG.standard_normal((256, 512)).astype(np.float32)
    packed = gguf.quants.quantize(rough, kind)
    _, tensors = gguf_load(written(tmp_path / "x.gguf", {"w": (packed, "Q8_0")}))
    weight, x = tensors["w"], Tensor(RNG.standard_normal((1, 512)).astype(np.float32)).realize()
    assert weight.shape == (256, 512) and weight.dtype is dtypes.float32
    np.testing.assert_allclose(weight.numpy(), gguf.quants.dequantize(packed, kind), rtol=1e-6)
    step = TinyJit(lambda x: (x @ weight.T).realize())
    for _ in range(3):
        before = GlobalCounters.mem_used
        got = step(x)
        assert GlobalCounters.mem_used - before < packed.nbytes / 4
    np.testing.assert_allclose(got.numpy(), x.numpy() @ rough.T, atol=0.5)


def test_what_is_no_gguf_file(tmp_path: Path) -> None:
    path = Path(written(tmp_path / "x.gguf", {"w": (blocks("Q4_0", 4), "Q4_0")}))
    whole = path.read_bytes()
    for text in (b"GGUX" * 10, b"GGUF", b"", whole[:-40], whole[:40]):
        path.write_bytes(text)
        with pytest.raises(FileFormatError, match="gguf_load"):
            gguf_load(path)
    path.write_bytes(whole[:16] + b"\xff" * 7 + whole[23:])  # a number of entries that would take ages to read
    with pytest.raises(FileFormatError, match="file's end"):
        gguf_load(path)
