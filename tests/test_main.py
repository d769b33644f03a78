"""``python -m tinsmith``: doctor, conformance and cache."""
from __future__ import annotations

import tomllib
from pathlib import Path

import tinsmith
from tests.golden.running import run


def test_doctor_shows_every_device_and_the_machine(tmp_path: Path) -> None:
    done = run(["-m", "tinsmith", "doctor"], tmp_path)
    assert done.returncode == 0, done.stdout + done.stderr
    rows = {line.split()[0]: line for line in done.stdout.splitlines() if line.split()}
    assert " ok " in rows["CPU:LLVM"] and " ok " in rows["PYTHON"] and "memory only" in rows["NPY"]
    for text in ("cores for this process", "disk cache", "writable", "llvmlite", "numpy", "Processor features"):
        assert text in done.stdout
    assert max(map(len, done.stdout.splitlines())) <= 160


def test_doctor_gives_the_reason_where_there_is_no_compiler(tmp_path: Path) -> None:
    done = run(["-m", "tinsmith", "doctor"], tmp_path, PATH=str(tmp_path))
    assert done.returncode == 0
    assert "there is neither gcc nor clang on the PATH. Try: DEV=CPU, which needs no compiler" in done.stdout


def test_doctor_fails_with_the_default_device(tmp_path: Path) -> None:
    done = run(["-m", "tinsmith", "doctor"], tmp_path, DEV="NOWHERE")
    assert done.returncode == 1
    assert "there is no device 'NOWHERE'" in done.stdout


def test_doctor_says_when_the_cache_cannot_be_written(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    done = run(["-m", "tinsmith", "doctor"], tmp_path, CACHE_DIR=str(tmp_path / "file" / "below"))
    assert done.returncode == 0
    assert "cannot be written" in done.stdout


def test_cache_lists_explains_and_clears(tmp_path: Path) -> None:
    script = "from tinsmith import Tensor; print(Tensor([1, 2]).sum().item())"
    assert run(["-c", script], tmp_path).stdout == "3\n"
    assert "llvm" in run(["-m", "tinsmith", "cache", "ls"], tmp_path).stdout
    entry = next(p for p in (tmp_path / "cache" / "llvm").rglob("*") if p.is_file())
    why = run(["-m", "tinsmith", "cache", "why", entry.name[:12]], tmp_path)
    assert why.returncode == 0 and why.stdout.startswith(f"llvm {entry.name}: {entry.stat().st_size} bytes")
    assert run(["-m", "tinsmith", "cache", "why", "no-such-key"], tmp_path).returncode == 1
    assert "dropped" in run(["-m", "tinsmith", "cache", "clear"], tmp_path).stdout
    assert not [p for p in (tmp_path / "cache").rglob("*") if p.is_file()]


def test_conformance_of_an_unknown_device(tmp_path: Path) -> None:
    done = run(["-m", "tinsmith", "conformance", "NOWHERE"], tmp_path)
    assert done.returncode == 1
    assert "there is no device 'NOWHERE'" in done.stdout


def test_version(tmp_path: Path) -> None:
    project = tomllib.loads((Path(__file__).parents[1] / "pyproject.toml").read_text("utf-8"))["project"]
    assert run(["-m", "tinsmith", "--version"], tmp_path).stdout == f"tinsmith {project['version']}\n"
    assert tinsmith.__version__ == project["version"]


def test_without_arguments_the_commands_are_listed(tmp_path: Path) -> None:
    done = run(["-m", "tinsmith"], tmp_path)
    assert done.returncode == 2
    assert "{doctor,conformance,cache,machine,beam,viz,source,ir,explain-error,launch,simulate,examples}" in done.stderr
