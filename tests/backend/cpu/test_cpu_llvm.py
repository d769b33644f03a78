"""Compiler, disk cache, memory guard and loader of the CPU device."""
from __future__ import annotations

import ctypes
import gc
import os
import subprocess
import sys
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import ml_dtypes
import numpy as np
import pytest

from tinsmith.backend.cpu import os_calls
from tinsmith.backend.cpu.llvm import ObjectCompiler, host_features, load, vector_bytes
from tinsmith.backend.device import Device
from tinsmith.core.counters import GlobalCounters
from tinsmith.core.errors import ArgumentError, CompileError
from tinsmith.core.settings import Context

ADD = "define i64 @add(i64 %a, i64 %b) {\n  %c = add i64 %a, %b\n  ret i64 %c\n}\n"
x86_only = pytest.mark.skipif(os_calls.architecture() != "x86_64", reason="x86 features")


@pytest.fixture(autouse=True)
def own_cache(tmp_path: Path) -> Iterator[Path]:
    with Context(CACHE_DIR=str(tmp_path), CACHELEVEL=1):
        yield tmp_path


def call_add(compiled: bytes) -> int:
    loaded = load([compiled], ["add"])
    return int(ctypes.CFUNCTYPE(ctypes.c_int64, ctypes.c_int64, ctypes.c_int64)(loaded.addresses[0])(40, 2))


def test_compiles_loads_and_runs() -> None:
    assert call_add(ObjectCompiler().compile(ADD)) == 42


def test_second_compile_comes_from_the_cache() -> None:
    first = ObjectCompiler().compile(ADD)
    before = GlobalCounters.compile_count
    assert ObjectCompiler().compile(ADD) == first
    assert GlobalCounters.compile_count == before
    with Context(CACHELEVEL=0):
        ObjectCompiler().compile(ADD)
    assert GlobalCounters.compile_count == before + 1


@x86_only
def test_features_are_part_of_the_key() -> None:
    ObjectCompiler().compile(ADD)
    before = GlobalCounters.compile_count
    with Context(CPU_FEATURES="generic"):
        ObjectCompiler().compile(ADD)
    assert GlobalCounters.compile_count == before + 1


def test_damaged_cache_entry_is_compiled_again(own_cache: Path) -> None:
    ObjectCompiler().compile(ADD)
    (entry,) = [path for path in own_cache.rglob("*") if path.is_file()]
    data = bytearray(entry.read_bytes())
    data[-1] ^= 0xFF
    entry.write_bytes(data)
    before = GlobalCounters.compile_count
    assert call_add(ObjectCompiler().compile(ADD)) == 42
    assert GlobalCounters.compile_count == before + 1


def test_syntax_error_shows_the_numbered_lines() -> None:
    with pytest.raises(CompileError, match=r">    2 \|   %c = add i64 %a, %nope"):
        ObjectCompiler().compile(ADD.replace("%b\n", "%nope\n"))


def test_verifier_error_marks_the_instruction() -> None:
    head = "define i32 @k(i1 %c) {\n  br i1 %c, label %a, label %b\n"
    text = head + "a:\n  %v = add i32 1, 2\n  br label %b\nb:\n  ret i32 %v\n}"
    with pytest.raises(CompileError, match=r">    4 \|   %v = add i32 1, 2"):
        ObjectCompiler().compile(text)


def test_missing_symbol_is_an_error() -> None:
    text = "define i64 @k() {\n  %x = call i64 @tinsmith_nowhere()\n  ret i64 %x\n}"
    compiled = ObjectCompiler().compile("declare i64 @tinsmith_nowhere()\n" + text)
    with pytest.raises(CompileError, match="cannot load k"):
        load([compiled], ["k"])


def test_several_objects_in_one_library() -> None:
    texts = [f"define i64 @k{n}() {{\n  ret i64 {n}\n}}\n" for n in range(20)]
    loaded = load([ObjectCompiler().compile(text) for text in texts], [f"k{n}" for n in range(20)])
    assert [ctypes.CFUNCTYPE(ctypes.c_int64)(address)() for address in loaded.addresses] == list(range(20))


def test_threads_compile_at_once_what_one_would() -> None:
    def multiply(n: int) -> str:
        lines = "".join(f"  %v{i + 1} = mul i64 %v{i}, {2 * i + n}\n" for i in range(200))
        return f"define i64 @m{n}(i64 %v0) {{\n{lines}  ret i64 %v200\n}}\n"
    texts = [multiply(n) for n in range(24)]
    with Context(CACHELEVEL=0):
        one_by_one = [ObjectCompiler().compile(text) for text in texts]

    def compile_here(text: str) -> bytes:
        with Context(CACHELEVEL=0):
            return ObjectCompiler().compile(text)
    with ThreadPoolExecutor(6) as pool:
        for _ in range(4):
            assert list(pool.map(compile_here, texts)) == one_by_one


def test_libraries_can_be_released_and_loaded_again() -> None:
    compiled = ObjectCompiler().compile(ADD)
    for _ in range(20):
        assert call_add(compiled) == 42
        gc.collect()


def test_assembly_is_text() -> None:
    assert "add:" in ObjectCompiler().assembly(ADD)


@x86_only
@pytest.mark.parametrize(
    ("features", "intrinsic"),
    [
        ("generic", "declare void @llvm.x86.tilerelease()\n"),
        ("avx512", "declare void @llvm.x86.tilezero(i8)\n"),
        ("avx2", 'declare <16 x float> @"llvm.x86.avx512.mask.scalef.ps.512"(<16 x float>, <16 x float>, i16, i32)\n'),
        ("generic", "declare <8 x float> @llvm.x86.avx.max.ps.256(<8 x float>, <8 x float>)\n"),
        ("", "declare void @llvm.x86.of.the.future()\n"),
        ("", "declare void @llvm.aarch64.hint(i32)\n"),
        ("", "declare i32 @llvm.nvvm.read.ptx.sreg.tid.x()\n"),
    ],
)
def test_intrinsic_that_would_abort_the_process_is_refused(features: str, intrinsic: str) -> None:
    with Context(CPU_FEATURES=features), pytest.raises(CompileError, match=r"@llvm\.\w+.*\n>    1 \| declare"):
        ObjectCompiler().compile(intrinsic + ADD)
    assert call_add(ObjectCompiler().compile(ADD)) == 42


@x86_only
def test_supported_intrinsic_passes() -> None:
    text = "define void @k() {\n  call void @llvm.x86.sse2.pause()\n  ret void\n}"
    assert ObjectCompiler().compile("declare void @llvm.x86.sse2.pause()\n" + text)


@x86_only
def test_cpu_features_takes_features_away() -> None:
    found, width = host_features(), vector_bytes()
    with Context(CPU_FEATURES="avx512"):
        without_amx = host_features()
        assert not any(name.startswith("amx") for name in without_amx)
    with Context(CPU_FEATURES="avx2"):
        avx2 = host_features()
        assert vector_bytes() == min(width, 32)
        assert not any(name.startswith("avx512") for name in avx2)
    with Context(CPU_FEATURES="generic"):
        generic = host_features()
        assert vector_bytes() == 16 and "sse2" in generic and "avx" not in generic
    assert generic < avx2 <= without_amx <= found


@x86_only
def test_restriction_reaches_the_machine_code() -> None:
    body = "%x = load <16 x float>, ptr %a\n%y = fadd <16 x float> %x, %x\nstore <16 x float> %y, ptr %a\nret void"
    text = f"define void @k(ptr %a) {{\n{body}\n}}"
    with Context(CPU_FEATURES="generic"):
        generic = ObjectCompiler().assembly(text)
    assert "xmm" in generic and "ymm" not in generic and "zmm" not in generic
    with Context(CPU_FEATURES="avx2"):
        assert "zmm" not in ObjectCompiler().assembly(text)


@x86_only
def test_restriction_reaches_the_generated_text() -> None:
    """A restriction of CPU features applies to a device that is already open."""
    open_already = Device["CPU"].renderer.target
    for features in ("avx2", "generic", ""):
        with Context(CPU_FEATURES=features):
            target = Device["CPU"].renderer.target
            assert target.vector_bytes == vector_bytes()
            assert target.fma == ("fma" in host_features()) and target.scales <= ("avx512f" in host_features())
    assert Device["CPU"].renderer.target == open_already


def test_unknown_restriction_is_an_error() -> None:
    with Context(CPU_FEATURES="mmx"), pytest.raises(ArgumentError, match="unknown CPU_FEATURES='mmx'"):
        host_features()


@pytest.mark.parametrize("features", ["", "avx2", "generic"])
@pytest.mark.parametrize("wide", ["float", "double"])
@pytest.mark.parametrize("narrow", ["half", "bfloat"])
def test_16_bit_floats_convert_alike_on_every_target(narrow: str, wide: str, features: str) -> None:
    text = f"""
define void @convert(ptr %source, ptr %narrowed, ptr %widened) {{
  %x = load {wide}, ptr %source
  %n = fptrunc {wide} %x to {narrow}
  store {narrow} %n, ptr %narrowed
  %again = load {narrow}, ptr %narrowed
  %w = fpext {narrow} %again to {wide}
  store {wide} %w, ptr %widened
  ret void
}}
"""
    with Context(CPU_FEATURES=features):
        loaded = load([ObjectCompiler().compile(text)], ["convert"])
    convert = ctypes.CFUNCTYPE(None, *[ctypes.c_void_p] * 3)(loaded.addresses[0])
    dtype = np.dtype(np.float16) if narrow == "half" else np.dtype(ml_dtypes.bfloat16)
    wide_dtype = np.dtype(np.float32 if wide == "float" else np.float64)
    random = np.random.default_rng(0)
    patterns = random.integers(0, 1 << 32, 2000, dtype=np.uint32).view(np.float32)
    near_half = random.normal(size=2000).astype(np.float32) * 2.0 ** random.integers(-28, 18, 2000)
    special = [0.0, -0.0, np.inf, -np.inf, np.nan, 65519.0, 65520.0, 2.0**-24, 2.0**-25, 1.0 + 2.0**-11, 1.0 + 2.0**-8]
    tie_from_above = [1.0 + 2.0**-11 + 2.0**-40, 1.0 + 3 * 2.0**-11 - 2.0**-40, 1.0 + 2.0**-8 + 2.0**-40]
    if wide == "double" and narrow == "bfloat":
        tie_from_above = []  # ml_dtypes itself rounds doubles twice
    if not features and narrow == "bfloat":
        patterns = patterns[~(np.abs(patterns) < 2.0**-126)]  # the processor's own instruction flushes these to zero
    with np.errstate(all="ignore"):
        source = np.concatenate([patterns, near_half, special, tie_from_above]).astype(wide_dtype)
        expected = source.astype(dtype)
    narrowed, widened = np.zeros(len(source), dtype), np.zeros(len(source), wide_dtype)
    for n in range(len(source)):
        convert(*(a.ctypes.data + n * a.itemsize for a in (source, narrowed, widened)))
    nan = np.isnan(source)
    assert np.isnan(narrowed[nan]).all() and np.isnan(widened[nan]).all()
    np.testing.assert_array_equal(narrowed.view(np.uint16)[~nan], expected.view(np.uint16)[~nan])
    np.testing.assert_array_equal(widened[~nan], expected.astype(wide_dtype)[~nan])


def test_what_an_interrupt_leaves_in_a_cycle_is_collected() -> None:
    """In a collected cycle an LLVM module is disposed of before its context; the other order crashes the process."""
    text = """
import gc
import os
import subprocess
import sys
from tinsmith.backend.cpu import llvm

def interrupted(machine, module):
    cycle = [module]
    cycle.append(cycle)
    raise KeyboardInterrupt

own, llvm._object_file = llvm._object_file, interrupted
for n in range(3):
    try:
        llvm.ObjectCompiler().compile("define i32 @f() { ret i32 1 }")
    except KeyboardInterrupt:
        pass
    gc.collect()
llvm._object_file = own
print(len(llvm.ObjectCompiler().compile("define i32 @f() { ret i32 1 }")) > 0)
"""
    done = subprocess.run([sys.executable, "-c", text], env={**os.environ, "CACHELEVEL": "0"}, capture_output=True,
                          text=True, timeout=120)
    assert (done.returncode, done.stdout.strip()) == (0, "True"), done.stderr
