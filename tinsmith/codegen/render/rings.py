"""Rings in CUDA C++ for Hopper: bulk tensor copies (TMA), mbarriers that count bytes, and warpgroup matrix products
(wgmma); PTX ISA 8, "Asynchronous warpgroup-level matrix instructions", "Tensor copy", "mbarrier".

Local memory of a kernel with a ring is one dynamic shared-memory block, sized by the launch. A tile is represented by
its *descriptor*: address, offsets of chunks and of groups of eight rows in units of 16 bytes, and swizzle mode.
"""
from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

from tinsmith.codegen.render.base import Target, local_bytes, near_bytes
from tinsmith.core.dtypes import dtypes
from tinsmith.ir import Ops, UOp
from tinsmith.ir.layout import ROW_BYTES, Layout
from tinsmith.ir.units import MatrixUnit

_INLINE = "__device__ __forceinline__"
HELPERS = (
    "struct __align__(64) TensorMap { unsigned long long words[16]; };",
    f"{_INLINE} unsigned int shared_address(const void* p) {{ return (unsigned int)__cvta_generic_to_shared(p); }}",
    f"{_INLINE} unsigned long long descriptor(unsigned int at, unsigned int chunk, unsigned int row) {{ return "
    f"(at & 0x3ffff) >> 4 | (unsigned long long)(chunk >> 4) << 16 | (unsigned long long)(8 * row >> 4) << 32 | "
    f"(row == {ROW_BYTES} ? 1ull : row == {ROW_BYTES // 2} ? 2ull : 3ull) << 62; }}",
    f'{_INLINE} void ring_begin(unsigned int at, int slots, int arrivals) {{ for (int i = 0; i < slots; i++) '
    'asm volatile('
    '"mbarrier.init.shared::cta.b64 [%0], %1;" :: "r"(at + 8 * i), "r"(arrivals) : "memory"); '
    'asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory"); }',
    f'{_INLINE} void ring_arrive(unsigned int at, unsigned int bytes) {{ asm volatile('
    '"mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], %1;" :: "r"(at), "r"(bytes) : "memory"); }',
    f'{_INLINE} void ring_release(unsigned int at) {{ asm volatile('
    '"mbarrier.arrive.shared::cta.b64 _, [%0];" :: "r"(at) : "memory"); }',
    f'{_INLINE} void ring_wait(unsigned int at, unsigned int parity) {{ asm volatile("{{\\n.reg .pred P;\\nW:\\n'
    'mbarrier.try_wait.parity.shared::cta.b64 P, [%0], %1;\\n@P bra D;\\nbra W;\\nD:\\n}" :: "r"(at), "r"(parity) : '
    '"memory"); }',
    f'{_INLINE} void steps_fence() {{ asm volatile("wgmma.fence.sync.aligned;" ::: "memory"); }}',
    f'{_INLINE} void steps_commit() {{ asm volatile("wgmma.commit_group.sync.aligned;" ::: "memory"); }}',
    f'template<int N> {_INLINE} void steps_drain() {{ asm volatile("wgmma.wait_group.sync.aligned %0;" :: "n"(N) : '
    '"memory"); }',
)


def copy_function(rank: int) -> str:
    """Return the function of a bulk copy of a box with ``rank`` dimensions."""
    coordinates = ", ".join(f"int c{n}" for n in range(rank))
    names = ", ".join(f"%{n + 3}" for n in range(rank))
    given = ", ".join(f'"r"(c{n})' for n in range(rank))
    return (f'{_INLINE} void copy_box{rank}(unsigned int to, const TensorMap* map, unsigned int ring, {coordinates}) '
            f'{{ asm volatile("cp.async.bulk.tensor.{rank}d.shared::cluster.global.mbarrier::complete_tx::bytes '
            f'[%0], [%1, {{{names}}}], [%2];" :: "r"(to), "l"(map), "r"(ring), {given} : "memory"); }}')


def step_function(unit: MatrixUnit, turned: tuple[bool | None, bool]) -> str:
    """Return the function of one step. ``turned``: per operand, True if the tile's rows run along the reduction; None:
    in registers."""
    count, held = unit.fragment_c.size, turned[0] is None
    parameters, operands = (", ".join(form.format(n) for n in range(count)) for form in ("float& c{}", '"+f"(c{})'))
    into = ", ".join(f"%{n}" for n in range(count))
    words = [f"a{n}" for n in range(unit.operand_a.size // 2)] if held else ["a"]
    a = ", ".join(f"%{count + n}" for n in range(len(words)))
    kind, letter = ("unsigned int", "r") if held else ("unsigned long long", "l")
    given = ", ".join(f'"{letter}"({word})' for word in words)
    modes = "".join(f", {int(t)}" for t in turned if t is not None) if unit.turned else ""
    return (f"{_INLINE} void {step_name(unit, turned)}({parameters}, {', '.join(f'{kind} {w}' for w in words)}, "
            f"unsigned long long b) {{\n"
            f'  asm volatile("{unit.emit} {{{into}}}, {f"{{{a}}}" if held else a}, %{count + len(words)}, 1, 1, 1'
            f'{modes};" : {operands} : {given}, "l"(b) : "memory"); }}')


def step_name(unit: MatrixUnit, turned: tuple[bool | None, bool]) -> str:
    return f"{unit.name}_{'r' if turned[0] is None else 'tn'[turned[0]]}{'tn'[not turned[1]]}"


def turned_tiles(mma: UOp) -> tuple[bool | None, bool]:
    a, b = mma.src[1:]
    return a.src[0].arg[2].deep if a.op is Ops.TILE else None, b.src[0].arg[2].deep


def prologue(program: Sequence[UOp]) -> list[str]:
    """Return the functions that a program with a ring calls."""
    steps = {(u.arg, turned_tiles(u)): None for u in program if u.op is Ops.MMA and u.arg.staged}
    ranks = sorted({len(u.arg.sizes) for u in program if u.op is Ops.ASYNC_COPY})
    return [*HELPERS, *map(copy_function, ranks), *(step_function(*s) for s in steps)]


def offsets(program: Sequence[UOp]) -> dict[UOp, int]:
    """Return the offset of each array in local memory: tiles first, aligned to 1024 bytes."""
    near = [u for u in program if u.op in (Ops.DEFINE_LOCAL, Ops.DEFINE_RING)]
    found, at = dict[UOp, int](), 0
    for u in sorted(near, key=lambda u: u.op is Ops.DEFINE_RING or len(u.arg) < 3):
        found[u], at = at, at + near_bytes(u)
    return found


def side_by_side(program: Sequence[UOp], threads: int, target: Target) -> int:
    """Return the occupancy in blocks per multiprocessor, limited by local memory and by registers (accumulators,
    loop-carried operands and a few more). While one block computes between two products, the unit works for another."""
    held, opened = Counter[UOp | None](), list[UOp | None]([None])
    if any(u.op is Ops.IF and u.arg for u in program):
        return 1  # setmaxnreg: its threads use all registers
    for u in program:
        if u.op is Ops.RANGE:
            opened.append(u)
        elif u.op is Ops.ENDRANGE:
            opened.pop()
        elif u.op is Ops.DRAIN and u.src:
            held[opened[-1]] += u.dtype.count
        elif u.op is Ops.DEFINE_ACC and u.dtype.scalar is dtypes.uint32:
            held[u.src[1]] += u.dtype.count
    each = max(held.values(), default=0) + target.filling_registers
    return max(1, min(target.ring_bytes // local_bytes(program), target.block_registers // (threads * each)))


def chunk_bytes(layout: Layout) -> int:
    """Return the distance in bytes of chunks that one step reads."""
    return layout.rows * layout.row if layout.deep else 16
