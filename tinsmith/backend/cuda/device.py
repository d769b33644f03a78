"""CUDA devices: ``CUDA`` is the first GPU, ``CUDA:1`` the next. They need NVIDIA's driver and cuda-bindings."""
from __future__ import annotations

import ctypes
import functools
import struct
from collections.abc import Iterable, Sequence
from math import prod
from typing import TYPE_CHECKING, Any, Final

from tinsmith.backend.cuda import launch_list
from tinsmith.backend.cuda.driver import CUDAError, CudaGPU, NVRTCCompiler, gpu_count, reach
from tinsmith.backend.cuda.memory import CUDAAllocator, TensorMap
from tinsmith.backend.cuda.stream_calls import StreamCall
from tinsmith.backend.device import Compiled
from tinsmith.backend.program import Call, Graph, Launched, Program
from tinsmith.codegen.launch import Launch
from tinsmith.codegen.render.cuda import CUDARenderer, cuda_target
from tinsmith.core.errors import DeviceError
from tinsmith.core.settings import settings
from tinsmith.target.target import Target

if TYPE_CHECKING:
    from tinsmith.backend.memory import Buffer

RENDERER = CUDARenderer
LEAST_NODES: Final = 3  # from this many launches on, one CUDA graph costs less than separate launches
WIDE: Final = 1 << 20  # from this many bytes moved per launch on, adjacent independent launches may run concurrently


class CUDAProgram(Program):
    """A kernel loaded on a GPU, with a reusable argument block for its launches."""

    def __init__(self, gpu: CudaGPU, kernel: Launch, binary: bytes) -> None:
        super().__init__(kernel, binary)
        self.gpu = gpu
        gpu.check()
        gpu.use()
        gpu.bury()
        self.module = gpu.call(gpu.driver.cuModuleLoadData, binary)
        self.function = gpu.call(gpu.driver.cuModuleGetFunction, self.module, kernel.symbol.encode())
        self.sizes = (*kernel.grid, 1, 1, 1)[:3] + (*kernel.block, 1, 1, 1)[:3]
        self.names = (kernel.symbol,)
        count = len(kernel.buffers) + len(kernel.variables)
        self.values = (ctypes.c_int64 * max(count, 1))()
        start = ctypes.addressof(self.values)
        self.maps = [TensorMap(gpu, view) for view in kernel.maps]
        places = [*(start + 8 * n for n in range(count)), *(ctypes.addressof(m.block) for m in self.maps)]
        self.pointers = (ctypes.c_void_p * max(len(places), 1))(*places)
        self.arguments = ctypes.addressof(self.pointers)
        self._pack = struct.Struct(f"={count}q").pack_into
        self.shared = kernel.local_bytes if kernel.maps else 0  # a kernel with a TMA ring uses dynamic shared memory
        if self.shared:
            gpu.call(gpu.driver.cuFuncSetAttribute, self.function,
                     gpu.driver.CUfunction_attribute.CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES, self.shared)
        self._launch = gpu.driver.cuLaunchKernel

    def __call__(self, buffers: Sequence[Any], variables: Sequence[int] = ()) -> None:
        self.launch(self.row(buffers, variables))

    @staticmethod
    def row(buffers: Sequence[Any], variables: Sequence[int]) -> list[int]:
        """Return the argument values of a launch: buffer addresses, then variables."""
        return [*(b.opaque.address + b.offset for b in buffers), *variables]

    def write(self, values: Sequence[int]) -> None:
        """Write the values into the argument block; the caller holds the GPU's lock."""
        self._pack(self.values, 0, *values)
        for m in self.maps:
            m.point_to(values[m.argument])

    def launch(self, values: Sequence[int], stream: Any = None) -> None:
        """Enqueue the kernel on a stream; None: the GPU's own."""
        gpu = self.gpu
        gpu.use()
        stream = gpu.stream if stream is None else stream
        with gpu.lock:
            self.write(values)
            status, = self._launch(self.function, *self.sizes, self.shared, stream, self.arguments, 0)
        if status:
            gpu.fail(status)
        gpu.launched.append(self.names)
        if settings.CUDA_SYNC:
            gpu.settle(stream)

    def node(self) -> Any:
        """Return the graph node parameters of a launch; a graph reads the argument block when the node is added or
        updated."""
        params = self.gpu.driver.CUDA_KERNEL_NODE_PARAMS()
        (params.gridDimX, params.gridDimY, params.gridDimZ,
         params.blockDimX, params.blockDimY, params.blockDimZ) = self.sizes
        params.func, params.sharedMemBytes = self.function, self.shared
        params.kernelParams, params.extra = self.arguments, 0
        return params

    @property
    def occupancy(self) -> float:
        gpu, threads = self.gpu, prod(self.sizes[3:])
        gpu.use()
        blocks = gpu.call(gpu.driver.cuOccupancyMaxActiveBlocksPerMultiprocessor, self.function, threads, self.shared)
        return int(blocks) * threads / gpu.attribute("MAX_THREADS_PER_MULTIPROCESSOR")

    def __del__(self) -> None:
        if hasattr(self, "module"):
            self.gpu.dead.append((self.gpu.driver.cuModuleUnload, self.module))


class CUDACopy(Program):
    """A copy of ``nbytes`` bytes from its second buffer to its first, within a GPU or between GPUs."""

    def __init__(self, gpu: CudaGPU, source: CudaGPU, nbytes: int) -> None:
        super().__init__(Launch("copy", "copy", [0, 1], [], frozenset((0,)), 0, nbytes, 0, False, [], []), b"")
        self.gpu, self.source, self.nbytes = gpu, source, nbytes

    def __call__(self, buffers: Sequence[Any], variables: Sequence[int] = ()) -> None:
        gpu, source = self.gpu, self.source
        to, start = (b.opaque.address + b.offset for b in buffers)
        gpu.check()
        if source is gpu:
            gpu.use()
            gpu.call(gpu.driver.cuMemcpyDtoDAsync, to, start, self.nbytes, gpu.stream)
            return
        gpu.wait(source.fence())
        gpu.call(gpu.driver.cuMemcpyPeerAsync, to, gpu.context, start, source.context, self.nbytes, gpu.stream)
        source.wait(gpu.fence())  # the source must not be overwritten before it has been read


class _Replay:
    """One instantiated CUDA graph, with the current arguments of its nodes.

    Stream calls are child graphs. One that begins work beside the kernels is a branch: no later node waits for it but
    the call that ends the work, and the next stream call that begins other work, because work of one communicator must
    not overlap.

    Args:
        key: the arguments: addresses of the bases, then values of the variables.
        levels: level of each launch. Launches of one level run concurrently and wait for those of the previous level.
        early: use programmatic dependent launch: a kernel may start early and itself waits for its predecessor.
    """

    def __init__(self, gpu: CudaGPU, programs: Sequence[CUDAProgram | StreamCall], key: tuple[int, ...],
                 rows: Sequence[tuple[int, ...]], levels: Sequence[int], early: bool = False) -> None:
        self.gpu, self.programs, self.key = gpu, programs, key
        self.rows, self.levels = list(rows), list(levels)
        self.early = early
        self.graph = gpu.call(gpu.driver.cuGraphCreate, 0)
        self.children: list[Any] = []
        self.params: list[Any] = []  # of kernels; None for stream calls
        self.nodes: list[Any] = []
        waited: list[tuple[Any, bool]] = []  # nodes of the previous level, each with True for a kernel
        current: list[tuple[Any, bool]] = []
        beside: list[tuple[Any, bool]] = []  # the last stream call that began work beside the kernels
        begun: dict[str, list[tuple[Any, bool]]] = {}  # all that did, by the name of the work
        now = 0
        for program, row, level in zip(programs, rows, levels):
            if level > now:
                waited, current, now = current or waited, [], level
            if isinstance(program, StreamCall):
                called = program.function
                node = self.call_node(program, row, [*waited, *begun.get(called.ends, beside)])
                if called.beside:
                    begun[called.beside] = beside = [(node, False)]
                else:
                    current.append((node, False))
                    beside = beside if called.ends else []
            else:
                node = self.kernel_node(program, row, waited)
                current.append((node, True))
            self.nodes.append(node)
        self.ready = gpu.call(gpu.driver.cuGraphInstantiate, self.graph, 0)

    def kernel_node(self, program: CUDAProgram, row: Sequence[int], waited: Sequence[tuple[Any, bool]]) -> Any:
        """Add a kernel after the nodes ``waited``."""
        program.write(row)
        self.params.append(program.node())
        node = self.gpu.call(self.gpu.driver.cuGraphAddKernelNode, self.graph, [], 0, self.params[-1])
        self.depend(node, waited, self.early and len(waited) == 1 and waited[0][1])
        return node

    def call_node(self, program: StreamCall, row: Sequence[int], waited: Sequence[tuple[Any, bool]]) -> Any:
        """Add the work of a stream call after the nodes ``waited``."""
        self.params.append(None)
        self.children.append(program.captured(row))
        node = self.gpu.call(self.gpu.driver.cuGraphAddChildGraphNode, self.graph, [], 0, self.children[-1])
        self.depend(node, waited, False)
        return node

    def depend(self, node: Any, waited: Sequence[tuple[Any, bool]], early: bool) -> None:
        if waited:
            self.gpu.call(self.gpu.driver.cuGraphAddDependencies, self.graph, [w for w, _ in waited],
                          [node] * len(waited), [self.edge(early) for _ in waited], len(waited))

    def edge(self, early: bool) -> Any:
        """Return the edge between two nodes: full dependency, or programmatic (the successor starts early and waits
        itself)."""
        edge = self.gpu.driver.CUgraphEdgeData()
        if early:
            edge.type = self.gpu.driver.CUgraphDependencyType.CU_GRAPH_DEPENDENCY_TYPE_PROGRAMMATIC
            edge.from_port = self.gpu.driver.CU_GRAPH_KERNEL_NODE_PORT_PROGRAMMATIC
        return edge

    def update(self, key: tuple[int, ...], rows: Sequence[tuple[int, ...]], numbers: Iterable[int]) -> None:
        """Update the arguments of the kernels ``numbers``; ``key`` has the new arguments of all."""
        gpu = self.gpu
        for n in numbers:
            program = self.programs[n]
            assert isinstance(program, CUDAProgram)
            program.write(rows[n])
            gpu.call(gpu.driver.cuGraphExecKernelNodeSetParams, self.ready, self.nodes[n], self.params[n])
        self.key, self.rows = key, list(rows)

    def __del__(self) -> None:
        driver = self.gpu.driver
        if hasattr(self, "ready"):
            self.gpu.dead.append((driver.cuGraphExecDestroy, self.ready))
        self.gpu.dead.extend((driver.cuGraphDestroy, graph) for graph in (self.graph, *self.children))


class CUDAGraph(Graph):
    """Launches that become one CUDA graph on their second run.

    They run in order, except that adjacent independent launches that move many bytes run concurrently, so that one
    fills the tail of the other. A run on arguments that were used before replays an existing CUDA graph unchanged;
    otherwise the nodes whose arguments differ are updated.

    Attributes:
        updated: total number of node updates.
    """

    def __init__(self, device: Compiled, gpu: CudaGPU, launches: Sequence[Launched]) -> None:
        super().__init__(device, launches)
        self.gpu, self.runs, self.updated = gpu, 0, 0
        self.programs = [e.program for e in launches
                         if isinstance(e.program, (CUDAProgram, StreamCall)) and e.program.gpu is gpu]
        self.calls = [p for p in self.programs if isinstance(p, StreamCall)]
        self.whole_graph = len(self.programs) == len(launches) >= LEAST_NODES
        self.bases = sorted({p.base for e in launches for p in e.places})
        self.values = sorted({v for e in launches for v in e.variables})
        at = {b: n for n, b in enumerate(self.bases)}
        self.places = [[(at[p.base], p.offset) for p in e.places] for e in launches]
        value = {v: n for n, v in enumerate(self.values, len(self.bases))}
        self.numbers = [[value[v] for v in e.variables] for e in launches]
        self.readers: list[set[int]] = [set() for _ in (*self.bases, *self.values)]  # argument → launches that use it
        for n, (places, numbers) in enumerate(zip(self.places, self.numbers)):
            for number in (*(base for base, _ in places), *numbers):
                self.readers[number].add(n)
        self.wide = any(e.program.kernel.bytes >= WIDE for e in launches)
        self.names = tuple(e.program.kernel.symbol for e in launches)
        # (addresses, values) → graph, in ``run`` addresses → graph; the most recently used is last
        self.replays: dict[tuple[int, ...], _Replay] = {}
        self.addressable = all(isinstance(e.program, CUDAProgram) for e in launches)
        self.seen: dict[tuple[int, ...], None] = {}  # addresses of recent calls of ``run``, each without a graph

    def __call__(self, bases: Sequence[Buffer], values: Sequence[int]) -> None:
        key = (*[(b._opaque or b.opaque).address + b.offset for b in map(bases.__getitem__, self.bases)],
               *[values[v] for v in self.values])
        self.runs += 1
        if not self.whole_graph or self.runs == 1 or settings.CUDA_SYNC:
            return self.one_by_one(bases, values, key)
        gpu = self.gpu
        gpu.use()
        for call in self.calls:
            call.announce()
        with gpu.lock:
            replay = self.replays.pop(key, None) or self.made(key, [b.nbytes for b in bases])
            self.replays[key] = replay
            status, = gpu.driver.cuGraphLaunch(replay.ready, gpu.stream)
        if status:
            gpu.fail(status)
        for call in [c for c in self.calls if c.function.launched is not None][-1:]:
            call.launched(gpu.stream)
        gpu.launched.append(self.names)
        return None

    def run(self, addresses: Sequence[int], values: Sequence[int], sizes: Sequence[int], stream: int,
            separate: bool = False) -> None:
        """Enqueue the launches on a stream of another library, which orders all uses of the memory.

        Addresses that come for the second time get a CUDA graph; other calls launch kernel by kernel.

        Args:
            addresses: the address of each base; with an alignment of 16 bytes.
            values: the values of the variables.
            sizes: bytes of each base.
            stream: the stream's handle; the GPU's context is current.
            separate: launch kernel by kernel, because the stream is being captured.
        """
        gpu, where = self.gpu, tuple([addresses[n] for n in self.bases])
        key = (*where, *[values[v] for v in self.values]) if self.values else where
        gpu.use()
        with gpu.lock:
            replay = None if separate or settings.CUDA_SYNC else self.replay(where, key, sizes)
            if replay is None and (self.native is None or settings.CUDA_SYNC):
                self.one_by_one((), values, key, stream)
                return
            if replay is None:
                self.launch_natively(key, stream)
            else:
                status, = gpu.driver.cuGraphLaunch(replay.ready, stream)
                if status:
                    gpu.fail(status)
        gpu.launched.append(self.names)

    @functools.cached_property
    def native(self) -> launch_list.LaunchList | None:
        """The launches as one native call; None where that is not possible."""
        if not launch_list.available():
            return None
        count = len(self.bases)
        arguments = [[*places, *((number, 0) for number in numbers)]
                     for places, numbers in zip(self.places, self.numbers)]
        programs = [p for p in self.programs if isinstance(p, CUDAProgram)]
        return launch_list.LaunchList(programs, arguments, count + len(self.values))

    def launch_natively(self, key: tuple[int, ...], stream: int) -> None:
        assert self.native is not None
        status, number = self.native.launch(key, stream)
        if status:
            try:
                self.gpu.fail(self.gpu.driver.CUresult(status))
            except CUDAError as error:
                error.number = number
                raise

    def replay(self, where: tuple[int, ...], key: tuple[int, ...], sizes: Sequence[int]) -> _Replay | None:
        """Return the CUDA graph for addresses that have come before, with the arguments ``key``; else None."""
        found = self.replays.pop(where, None)
        if found is None:
            if not self.whole_graph or where not in self.seen:
                while len(self.seen) >= 2 * self.device.target.replays:
                    del self.seen[next(iter(self.seen))]
                self.seen[where] = None
                return None
            del self.seen[where]
            found = self.made(key, sizes)
        elif found.key != key:
            found = self.changed(found, key, sizes)
        self.replays[where] = found
        return found

    def made(self, key: tuple[int, ...], sizes: Sequence[int]) -> _Replay:
        """Return a CUDA graph for these arguments: a new one, or the least recently used one, updated."""
        self.gpu.check()
        self.gpu.bury()
        if len(self.replays) < self.device.target.replays:
            rows = [self.row(n, key) for n in range(len(self.launches))]
            return self.new_replay(key, rows, self.levels(rows, sizes))
        return self.changed(self.replays.pop(next(iter(self.replays))), key, sizes)

    def new_replay(self, key: tuple[int, ...], rows: Sequence[tuple[int, ...]], levels: Sequence[int]) -> _Replay:
        return _Replay(self.gpu, self.programs, key, rows, levels, self.device.target.launches_early)

    def changed(self, replay: _Replay, key: tuple[int, ...], sizes: Sequence[int]) -> _Replay:
        """Return ``replay`` with other arguments, or a new graph where its structure depends on them."""
        others = sorted({n for a, b, readers in zip(replay.key, key, self.readers) if a != b for n in readers})
        rows = list(replay.rows)
        for n in others:
            rows[n] = self.row(n, key)
        moved = replay.key[:len(self.bases)] != key[:len(self.bases)]
        levels = self.levels(rows, sizes) if moved else replay.levels
        if replay.levels != levels or any(isinstance(self.programs[n], StreamCall) for n in others):
            # other launches share memory now, or work must be captured again
            return self.new_replay(key, rows, levels)
        self.updated += len(others)
        replay.update(key, rows, others)
        return replay

    def levels(self, rows: Sequence[tuple[int, ...]], sizes: Sequence[int]) -> list[int]:
        """Return a level per launch: each launch gets the next level, except wide launches independent of the others on
        its level. ``sizes`` has the bytes of each base."""
        if not self.wide:
            return list(range(len(rows)))
        found: list[int] = []
        read: list[tuple[int, int]] = []
        written: list[tuple[int, int]] = []
        for e, row in zip(self.launches, rows):
            kernel = e.program.kernel
            spans = [(start, start + (sizes[p.base] if p.dtype is None else p.size * p.dtype.itemsize))
                     for p, start in zip(e.places, row)]
            mine = [span for span, n in zip(spans, kernel.buffers) if n in kernel.written]
            wide = kernel.bytes >= WIDE and not isinstance(e.program, StreamCall)
            together = found and wide and not _meet(spans, written) and not _meet(mine, read)
            if not together:
                read, written = [], []
            found.append(found[-1] + (not together) if found else 0)
            if wide:
                read, written = [*read, *spans], [*written, *mine]
            else:  # conflicts with everything, so the next launch waits for it
                read = written = [(0, 1 << 64)]
        return found

    def row(self, number: int, key: tuple[int, ...]) -> tuple[int, ...]:
        """Return the argument values of launch ``number``."""
        return (*[key[base] + offset for base, offset in self.places[number]], *[key[v] for v in self.numbers[number]])

    def one_by_one(self, bases: Sequence[Buffer], values: Sequence[int], key: tuple[int, ...],
                   stream: Any = None) -> None:
        """Launch kernel by kernel on ``stream``; None: the GPU's own."""
        for n, e in enumerate(self.launches):
            try:
                if isinstance(e.program, CUDAProgram):
                    e.program.launch(self.row(n, key), stream)
                elif isinstance(e.program, StreamCall):
                    e.program.launch(self.row(n, key))
                else:
                    e.program([p.of(bases) for p in e.places], [values[v] for v in e.variables])
            except CUDAError as error:
                error.number = n
                raise


def _meet(some: Sequence[tuple[int, int]], others: Sequence[tuple[int, int]]) -> bool:
    """Return True if any span in ``some`` overlaps one in ``others``."""
    return any(a < d and c < b for a, b in some for c, d in others)


def _program(gpu: CudaGPU, kernel: Launch, binary: bytes) -> Program:
    return StreamCall(gpu, kernel) if kernel.host else CUDAProgram(gpu, kernel, binary)


class CUDADevice(Compiled):
    """A GPU with one stream, in which copies and kernels run in order."""

    def __init__(self, name: str, gpu: CudaGPU) -> None:
        self.gpu = gpu
        self._clock: tuple[Any, Any] | None = None
        super().__init__(name, CUDAAllocator(gpu), NVRTCCompiler(gpu.arch, gpu=gpu.model),
                         functools.partial(_program, gpu), CUDARenderer(gpu_target(gpu)))
        self.hardware = gpu.model
        self.dlpack = 2, gpu.number

    @property
    def worker(self) -> str:
        """"CUDA" for all GPUs: launches are asynchronous, so one host thread enqueues for all of them."""
        return "CUDA"

    def copier(self, source: Compiled, nbytes: int) -> Program | None:
        """Return a copy program in this GPU's stream, from its own memory or another GPU's."""
        return CUDACopy(self.gpu, source.gpu, nbytes) if isinstance(source, CUDADevice) else None

    def graph(self, launches: Sequence[Launched]) -> Graph:
        return CUDAGraph(self, self.gpu, launches)

    def timed(self, call: Call) -> float:
        for b in call.buffers:
            b.opaque  # noqa: B018
        gpu = self.gpu
        gpu.use()
        if self._clock is None:
            self._clock = gpu.event(timing=True), gpu.event(timing=True)
        start, end = self._clock
        if isinstance(call.program, CUDAProgram):
            with gpu.lock:  # encode tensor maps before the clock starts
                call.program.write(call.program.row(call.buffers, call.variables))
        gpu.record(start)
        self.run([call])
        gpu.record(end)
        gpu.settle()
        return float(gpu.call(gpu.driver.cuEventElapsedTime, start, end)) * 1e-3

    def record(self) -> Any:
        return self.gpu.record()

    def wait(self, event: Any) -> None:
        self.gpu.wait(event)

    @property
    def stream(self) -> int:
        return int(self.gpu.stream)

    def hand_over(self, stream: int | None) -> None:
        """Make the foreign stream wait. In DLPack, None and 1 are the default stream, 2 the per-thread one, -1 means no
        wait."""
        if stream != -1:
            self.gpu.call(self.gpu.driver.cuStreamWaitEvent, 1 if stream is None else stream, self.gpu.fence(), 0)

    @property
    def lost(self) -> str:
        return self.gpu.lost

    def synchronize(self) -> None:
        self.gpu.synchronize()


def gpu_target(gpu: CudaGPU) -> Target:
    """Return the ``Target`` (features of generated code) of a GPU: its architecture and multiprocessor count."""
    return cuda_target(gpu.arch, gpu.attribute("MULTIPROCESSOR_COUNT"))


_opened: Final[dict[int, CudaGPU]] = {}


def DEVICE(name: str) -> Compiled:
    """Open ``CUDA`` or ``CUDA:k``.

    Raises:
        DeviceError: if a requirement is missing; the message names it.
    """
    count = gpu_count()
    parts = name.split(":")[1:]
    number = int(parts[0]) if parts and parts[0].isdigit() else 0
    if number >= count or any(not p.isdigit() for p in parts):
        raise DeviceError("Device", f"there is no {name}", f"CUDA:0 to CUDA:{count - 1}")
    gpu = CudaGPU(name, number)
    reach(_opened.values(), gpu)
    _opened[number] = gpu
    return CUDADevice(name, gpu)
