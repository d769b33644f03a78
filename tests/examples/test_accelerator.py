"""The example accelerator: assembler, simulator, memory, and device."""
from __future__ import annotations

import re
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from tests.golden.running import ROOT, run
from tinsmith import Context, Device, Tensor, nn
from tinsmith.backend.device import Allocator, Compiled, Compiler
from tinsmith.backend.program import Program
from tinsmith.backend.python.render import PythonRenderer
from tinsmith.codegen.launch import Launch
from tinsmith.core.errors import CompileError, KernelError, OutOfMemoryError
from tinsmith.target.target import Target

PACKAGE = ROOT / "examples" / "accelerator"
sys.path.insert(0, str(PACKAGE))

from anvil.assembler import assemble, disassemble, instructions, parse  # noqa: E402
from anvil.device import AnvilAllocator, AnvilDevice  # noqa: E402
from anvil.isa import FORMS, REGISTERS, TYPES, Instruction  # noqa: E402
from anvil.machine import SCRATCH_BYTES, Machine, translate  # noqa: E402

Device.register("ANVIL", AnvilDevice)


@pytest.fixture
def machine() -> Machine:
    return Machine(SCRATCH_BYTES + (1 << 16))


# *** assembler ***


@st.composite
def lines(draw: st.DrawFn) -> Instruction:
    name = draw(st.sampled_from([n for n in FORMS if n not in ("loop", "endloop", "if", "endif")]))
    form = FORMS[name]
    registers = tuple(draw(st.integers(0, REGISTERS[kind] - 1)) for kind in form.registers)
    constant = draw(st.integers(-(1 << 63), (1 << 63) - 1)) if form.constant else 0
    kind, count = (draw(st.sampled_from(TYPES)), draw(st.integers(1, 256))) if form.typed else ("", 0)
    return Instruction(name, kind, count, registers, constant)


@given(st.lists(lines(), max_size=5))
@example([Instruction("scatter", "bool", 100, (0, 0, 0, 0), 0)])  # as long as the column of names
def test_text_and_binary_say_the_same(program: list[Instruction]) -> None:
    binary = assemble("\n".join(map(str, program)))
    assert list(instructions(binary)) == program
    listing = [re.fullmatch(r" *[0-9a-f]+: [0-9a-f]{40}  (.*)", line) for line in disassemble(binary).splitlines()]
    assert [parse(found[1]) for found in listing if found] == program


@pytest.mark.parametrize("text", ["jump s0", "add.f32x8 v0, v1", "add v0, v1, v2", "add.f33x8 v0, v1, v2",
                                  "sadd s0, s1, v2", "sconst s5000, 1", "sconst s0", "loop s0, s1, s2", "endloop"])
def test_the_assembler_names_the_line_that_is_wrong(text: str) -> None:
    with pytest.raises(CompileError, match=r"line 2|endloop is missing"):
        assemble(f"sconst s1, 1\n{text}")


# *** machine ***


def test_a_program_by_hand(machine: Machine) -> None:
    """A hand-written program: the sum of eight numbers, two at a time."""
    source = """
    .args 2
    sarg     s0, 0
    sarg     s1, 1
    const.f32x2 v0, 0
    sconst   s2, 0
    sconst   s3, 4
    sconst   s4, 8
    loop     s5, s2, s3
      smul   s6, s5, s4
      sadd   s7, s1, s6
      load.f32x2 v1, s7, 0
      add.f32x2  v0, v0, v1
    endloop
    store.f32x2 s0, v0, 0
    """
    at = SCRATCH_BYTES
    machine.store("f32", at + 64, np.arange(8, dtype=np.float32))
    translate(machine, assemble(source))([at, at + 64])
    assert machine.load("f32", at, 2).tolist() == [12, 16]


@pytest.mark.parametrize("address", [-4, SCRATCH_BYTES + (1 << 16), 2])
def test_an_address_that_is_none_is_a_fault(machine: Machine, address: int) -> None:
    program = translate(machine, assemble(f".args 0\nsconst s0, {address}\nload.f32x4 v0, s0, 0"))
    with pytest.raises(KernelError, match=f"fault.*{address}"):
        program([])


@given(st.lists(st.tuples(st.booleans(), st.integers(0, 5000)), max_size=40))
def test_blocks_never_overlap_and_all_memory_comes_back(steps: list[tuple[bool, int]]) -> None:
    allocator = AnvilAllocator(Machine(SCRATCH_BYTES + (1 << 16)))
    held: dict[int, int] = {}
    for take, size in steps:
        if take or not held:
            try:
                address = allocator.alloc(size)
            except OutOfMemoryError:
                assert max((s for _, s in allocator.free_blocks), default=0) < size + 64
                continue
            assert all(address + size <= a or a + s <= address for a, s in held.items())
            held[address] = max(size, 1)
        else:
            address = sorted(held)[size % len(held)]
            del held[address]
            allocator.free(address)
    for address in held:
        allocator.free(address)
    assert allocator.free_blocks == [(SCRATCH_BYTES, 1 << 16)]


# *** device ***


@pytest.mark.parametrize("m, k, n", [(256, 256, 256), (33, 97, 257), (1, 64, 64), (130, 31, 128)])
def test_products_at_the_edges_of_tiles(m: int, k: int, n: int) -> None:
    a, b = (np.random.default_rng(0).integers(-4, 5, s).astype(np.float32) for s in ((m, k), (k, n)))
    out = (Tensor(a, device="ANVIL") @ Tensor(b, device="ANVIL") + 1).relu()
    np.testing.assert_array_equal(out.numpy(), np.maximum(a @ b + 1, 0))


def test_a_large_product_uses_the_matrix_unit(capfd: pytest.CaptureFixture[str]) -> None:
    a = Tensor.ones(256, 256, device="ANVIL").contiguous().realize()
    with Context(DEBUG=7):
        (a @ a).realize()
    printed = capfd.readouterr().out
    assert "TC(" in printed and "tmul" in printed


def test_devices_have_machines_of_their_own() -> None:
    x = Tensor([1.0, 2.0], device="ANVIL:1")
    assert (x.to("ANVIL") * 2).tolist() == [2, 4] and (x + 1).tolist() == [2, 3]
    assert Device["ANVIL"].allocator is not Device["ANVIL:1"].allocator


class Network:
    """The network of the tutorials."""

    def __init__(self) -> None:
        self.layers: list[Callable[[Tensor], Tensor]] = [
            nn.Conv2d(1, 32, 5), Tensor.relu, nn.Conv2d(32, 32, 5), Tensor.relu, nn.BatchNorm(32), Tensor.max_pool2d,
            nn.Conv2d(32, 64, 3), Tensor.relu, nn.Conv2d(64, 64, 3), Tensor.relu, nn.BatchNorm(64), Tensor.max_pool2d,
            lambda x: x.flatten(1), nn.Linear(576, 10)]


def trained(device: str, weights: dict[str, np.ndarray]) -> tuple[float, dict[str, np.ndarray]]:
    """Return the loss of one training step from these weights, and the network after it."""
    rng = np.random.default_rng(0)
    images, labels = rng.random((4, 1, 28, 28), np.float32), rng.integers(0, 10, 4).astype(np.int32)
    with Context(DEV=device):
        network = Network()
        state = nn.state.get_state_dict(network)
        for name, value in state.items():
            value.assign(weights[name]).realize()
        opt = nn.optim.SGD(nn.state.get_parameters(network), lr=0.1)
        with Tensor.train():
            loss = Tensor(images).sequential(network.layers).sparse_categorical_crossentropy(Tensor(labels))
            opt.zero_grad()
            loss.backward()
            opt.step()
        assert all(t.device == Device.canonicalize(device) for t in state.values())
        return loss.item(), {name: value.numpy() for name, value in state.items()}


def test_a_training_step_is_that_of_the_cpu() -> None:
    Tensor.manual_seed(0)
    start = {name: t.numpy() for name, t in nn.state.get_state_dict(Network()).items()}
    (loss, ours), (wanted, theirs) = trained("ANVIL", start), trained("CPU", start)
    assert loss == pytest.approx(wanted, abs=1e-4)
    for name, value in theirs.items():
        np.testing.assert_allclose(ours[name], value, rtol=0, atol=1e-4, err_msg=name)
    assert any((theirs[name] != start[name]).any() for name in theirs)


# *** discovery of the device by tinsmith ***


@pytest.fixture
def installed(tmp_path: Path) -> Iterator[Path]:
    """Return a folder with the package as pip installs it, metadata included."""
    (tmp_path / "anvil").symlink_to(PACKAGE / "anvil")
    project = (PACKAGE / "pyproject.toml").read_text("utf-8")
    entry = re.search(r'"tinsmith.devices"\]\n(\w+) = "([\w.:]+)"', project)
    assert entry is not None
    info = tmp_path / "tinsmith_anvil-0.1.0.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: tinsmith-anvil\nVersion: 0.1.0\n", "utf-8")
    (info / "entry_points.txt").write_text(f"[tinsmith.devices]\n{entry[1]} = {entry[2]}\n", "utf-8")
    yield tmp_path


def test_an_installed_package_brings_a_device_that_conforms(installed: Path) -> None:
    done = run(["-m", "tinsmith", "conformance", "ANVIL"], installed)
    assert done.returncode == 0, done.stdout + done.stderr
    passed = re.search(r"(\d+) of (\d+)", done.stdout)
    assert passed is not None and passed[1] == passed[2] and int(passed[1]) > 400


class MyMetalAllocator(Allocator):
    """An allocator in the tutorials' form, created by its device."""

    def __init__(self, device: MyMetalDevice) -> None:
        self.device = device

    def alloc(self, nbytes: int) -> bytearray:
        return bytearray(nbytes)

    def copyin(self, opaque: bytearray, offset: int, source: memoryview) -> None:
        opaque[offset : offset + source.nbytes] = source

    def copyout(self, target: memoryview, opaque: bytearray, offset: int) -> None:
        target[:] = opaque[offset : offset + target.nbytes]


class MyMetalProgram(Program):
    """A program that counts its launches and always writes ones."""

    launches = 0

    def __call__(self, buffers: object, variables: object = ()) -> None:
        MyMetalProgram.launches += 1
        for number, buffer in zip(self.kernel.buffers, buffers):  # type: ignore[call-overload]
            if number in self.kernel.written:
                buffer.opaque[:] = np.ones(len(buffer.opaque) // 4, np.float32).tobytes()


class MyMetalDevice(Compiled):
    """A plug-in device class in the tutorials' form."""

    def __init__(self, device: str) -> None:
        def load(kernel: Launch, binary: bytes) -> MyMetalProgram:
            return MyMetalProgram(kernel, binary)

        super().__init__(device, MyMetalAllocator(self), Compiler(), load, PythonRenderer(Target("mymetal")))


def test_a_class_is_registered_by_a_call() -> None:
    Device.register("MYMETAL", MyMetalDevice)
    before = MyMetalProgram.launches
    assert (Tensor([5.0, 6.0], device="MYMETAL") * 2).tolist() == [1, 1]
    assert MyMetalProgram.launches == before + 1 and "MYMETAL" in Device.known()


# *** the page ***


def test_the_page_shows_what_is_in_the_files() -> None:
    page = (ROOT / "docs" / "new_accelerator.md").read_text("utf-8")
    shown = re.findall(r"<!-- norun --> <!-- (\S+) -->\n```\w+\n(.*?)```", page, re.S)
    assert len(shown) >= 5
    for name, text in shown:
        source = (PACKAGE / name).read_text("utf-8")
        for piece in text.split("...\n"):
            assert piece.strip("\n") in source, f"{name} has changed:\n{piece}"
