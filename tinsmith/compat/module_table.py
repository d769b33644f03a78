"""Table of tinygrad modules, current and earlier, and the Tinsmith modules that replace them.

Each can be imported. Its names are looked up in ``names`` first, whichever module has them there; what is said here is
the answer for those that Tinsmith does not have. A module below one of these has the same answer.
"""
from __future__ import annotations

from typing import Final

_DEVICE = "a device is made of the parts in tinsmith.backend.device: docs/new_accelerator.md"
_GENERATED = "no vendor's headers are bound; " + _DEVICE
_FUSION = "tinsmith.schedule.fusion.fusion decides what has memory; DEBUG=3 prints why"
_LINES = "tinsmith.codegen.emit.linearize writes the lines of a kernel; DEBUG=5 prints them"
_OPTS = "Opt, OptOps and with_opts of tinsmith: docs/opts.md"
_SYMBOLIC = "tinsmith.Variable and all sizes made of it: docs/symbolic.md; rules are in tinsmith.ir.algebra.symbolic"
_PRINT = "DEBUG=5 prints trees and programs, Tensor.schedule()[-1].tree() one tree; tinsmith.ir.text.printer"

PLACES: Final[dict[str, str]] = {
    "tinygrad": "docs/api.md lists the names that are here",
    "tinygrad.apps": "examples/ has programs",
    "tinygrad.codegen":
        "tinsmith.codegen.compile_kernel.compile_kernel goes from a kernel's graph to its UOps and source",
    "tinygrad.codegen.decomp": "tinsmith.codegen.decompose.decompose writes ops with others",
    "tinygrad.codegen.decomp.dtype":
        "tinsmith.codegen.decompose.floats computes with dtypes that the device does not have",
    "tinygrad.codegen.decomp.op": "tinsmith.codegen.decompose.decompose writes ops with others",
    "tinygrad.codegen.decomp.transcendental": "tinsmith.codegen.decompose.elementary, .sines and .powers",
    "tinygrad.codegen.devectorizer": _LINES,
    "tinygrad.codegen.expander": _LINES,
    "tinygrad.codegen.gpudims": "tinsmith.codegen.transform.thread_blocks makes grids and blocks of a kernel's ranges",
    "tinygrad.codegen.heuristic": "tinsmith.codegen.planner.planner chooses opts; docs/opts.md gives them by hand",
    "tinygrad.codegen.kernel": _OPTS,
    "tinygrad.codegen.late": _LINES,
    "tinygrad.codegen.linearize": _LINES,
    "tinygrad.codegen.linearizer": _LINES,
    "tinygrad.codegen.lowerer": "tinsmith.codegen.lower.lower turns views into indices",
    "tinygrad.codegen.opt": _OPTS,
    "tinygrad.codegen.opt.heuristic": "tinsmith.codegen.planner.planner chooses opts; docs/opts.md gives them by hand",
    "tinygrad.codegen.opt.kernel": _OPTS,
    "tinygrad.codegen.opt.postrange": _OPTS,
    "tinygrad.codegen.opt.search": "BEAM=2 searches: docs/search.md; tinsmith.inspect.search.search",
    "tinygrad.codegen.opt.swizzler": _FUSION,
    "tinygrad.codegen.opt.tc":
        "tinsmith.ir.matrix_unit describes matrix units, Opt(OptOps.TC, …) uses one: docs/opts.md",
    "tinygrad.codegen.search": "BEAM=2 searches: docs/search.md; tinsmith.inspect.search.search",
    "tinygrad.codegen.simplify": "tinsmith.ir.algebra.symbolic simplifies; its rules have names and laws: docs/ir.md",
    "tinygrad.codegen.symbolic": _SYMBOLIC,
    "tinygrad.codegen.transcendental": "tinsmith.codegen.decompose.elementary, .sines and .powers",
    "tinygrad.codegen.uopgraph": "tinsmith.ir.ProgramBuilder: docs/ir.md",
    "tinygrad.codegen.uops": "tinsmith.ir.ProgramBuilder: docs/ir.md",
    "tinygrad.commandqueue": "tinsmith.runtime.command_queue",
    "tinygrad.device": _DEVICE,
    "tinygrad.dtype": "tinsmith.dtypes and its methods; tinsmith.core.dtypes",
    "tinygrad.engine": "tinsmith.schedule makes and runs programs, tinsmith.jit captures them",
    "tinygrad.engine.commandqueue": "tinsmith.runtime.command_queue",
    "tinygrad.engine.graph": _PRINT,
    "tinygrad.engine.grouper": _FUSION,
    "tinygrad.engine.jit": "tinsmith.jit: docs/jit.md",
    "tinygrad.engine.kernelize": _FUSION,
    "tinygrad.engine.lazy": "a tensor's graph is a tinsmith.ir.UOp: Tensor.uop",
    "tinygrad.engine.memory": "tinsmith.schedule.memory.memory_plan plans memory",
    "tinygrad.engine.multi": "tinsmith.schedule.multi.sharding: docs/devices.md",
    "tinygrad.engine.realize": "Tensor.schedule() makes the steps, CommandQueue(schedule)() runs them",
    "tinygrad.engine.schedule": "Tensor.schedule(); tinsmith.schedule.scheduler.Scheduler makes the items",
    "tinygrad.engine.search": "BEAM=2 searches: docs/search.md; tinsmith.inspect.search.search",
    "tinygrad.engine.transform": "Tensor.replace; tinsmith.ir.uop.substitute",
    "tinygrad.engine.worker": "tinsmith.codegen.transform.prefetch compiles in other threads",
    "tinygrad.features": "tinsmith.jit, tinsmith.runtime.command_queue and Tensor.shard",
    "tinygrad.features.graph": "tinsmith.backend.program.Graph runs the launches of a capture",
    "tinygrad.features.image": "there are no image dtypes, and nothing takes their place",
    "tinygrad.features.jit": "tinsmith.jit: docs/jit.md",
    "tinygrad.features.multi": "Tensor.shard: docs/devices.md",
    "tinygrad.features.search": "BEAM=2 searches: docs/search.md; tinsmith.inspect.search.search",
    "tinygrad.function": "tinsmith.Function for gradients of your own: docs/gradients.md; ours are in tinsmith.ir.ops",
    "tinygrad.gradient": "Tensor.gradient and Tensor.backward; rules are in tinsmith.ir.ops",
    "tinygrad.graph": _PRINT,
    "tinygrad.helpers": "the standard library, and tinsmith.compat.helpers",
    "tinygrad.jit": "tinsmith.jit: docs/jit.md",
    "tinygrad.lazy": "a tensor's graph is a tinsmith.ir.UOp: Tensor.uop",
    "tinygrad.llm": "examples/ has a decoder that generates text",
    "tinygrad.llm.gguf": "tinsmith.nn.io.gguf.gguf_load",
    "tinygrad.lowerer": "tinsmith.codegen.lower.lower turns views into indices",
    "tinygrad.mixin": "the methods are Tensor's, a file per family in tinsmith.tensor",
    "tinygrad.mixin.gradient": "Tensor.gradient and Tensor.backward; rules are in tinsmith.ir.ops",
    "tinygrad.mlops": "gradient rules stand in the op table, tinsmith.ir.ops; tinsmith.Function is for your own",
    "tinygrad.multi": "Tensor.shard: docs/devices.md",
    "tinygrad.nn": "docs/api.md lists the layers that are here; functions are methods of Tensor",
    "tinygrad.nn.datasets": "tinsmith.nn.datasets has mnist and cifar",
    "tinygrad.nn.image": "tinsmith.nn.Conv2d; there are no image dtypes",
    "tinygrad.nn.optim": "tinsmith.nn.optim; docs/api.md lists what is here",
    "tinygrad.nn.state": "tinsmith.nn.state; docs/api.md lists what is here",
    "tinygrad.nn.torch": "Tensor(array) and torch.from_numpy(tensor.numpy())",
    "tinygrad.ops": "tinsmith.ir has Ops and UOp: docs/ir.md; rewrites are tinsmith.ir.rewrite",
    "tinygrad.realize": "Tensor.schedule() makes the steps, CommandQueue(schedule)() runs them",
    "tinygrad.renderer": "tinsmith.codegen.render writes source: C, LLVM IR, CUDA, OpenCL, Metal",
    "tinygrad.renderer.amd": "there is no device AMD; " + _DEVICE,
    "tinygrad.renderer.assembly": "the CPU's way without C is tinsmith.codegen.render.llvm",
    "tinygrad.renderer.isa": "the CPU's way without C is tinsmith.codegen.render.llvm",
    "tinygrad.renderer.nir": "tinsmith.codegen.render.opencl writes for GPUs that CUDA does not know",
    "tinygrad.renderer.ptx": "GPUs of NVIDIA get CUDA C from tinsmith.codegen.render.cuda",
    "tinygrad.renderer.wgsl": "tinsmith.codegen.render.wgsl writes WGSL",
    "tinygrad.runtime": _DEVICE,
    "tinygrad.runtime.autogen": _GENERATED,
    "tinygrad.runtime.graph": "tinsmith.backend.program.Graph runs the launches of a capture",
    "tinygrad.runtime.lib": "tinsmith.backend.memory.Buffer is memory, tinsmith.backend.device has the other parts",
    "tinygrad.runtime.ops_amd": "there is no device AMD; " + _DEVICE,
    "tinygrad.runtime.ops_cl": "tinsmith.backend.opencl: DEV=OPENCL",
    "tinygrad.runtime.ops_clang": "tinsmith.backend.cpu: DEV=CPU, DEV=CPU:C for a C compiler",
    "tinygrad.runtime.ops_cpu": "tinsmith.backend.cpu: DEV=CPU, DEV=CPU:C for a C compiler",
    "tinygrad.runtime.ops_cuda": "tinsmith.backend.cuda: DEV=CUDA",
    "tinygrad.runtime.ops_disk": "tinsmith.backend.disk: Tensor(Path), device='disk:path'",
    "tinygrad.runtime.ops_gpu": "tinsmith.backend.opencl: DEV=OPENCL",
    "tinygrad.runtime.ops_hip": "tinsmith.codegen.render.hip writes HIP's kernels, and no device runs them",
    "tinygrad.runtime.ops_llvm": "tinsmith.backend.cpu compiles with LLVM",
    "tinygrad.runtime.ops_metal": "tinsmith.backend.metal.device runs what tinsmith.codegen.render.metal writes",
    "tinygrad.runtime.ops_npy": "tinsmith.backend.npy",
    "tinygrad.runtime.ops_null": "Tensor.schedule() and Tensor.explain(run=False) run nothing",
    "tinygrad.runtime.ops_nv": "tinsmith.backend.cuda: DEV=CUDA",
    "tinygrad.runtime.ops_python": "tinsmith.backend.python: DEV=PYTHON",
    "tinygrad.runtime.support": _DEVICE,
    "tinygrad.schedule": "Tensor.schedule(); tinsmith.schedule.scheduler.Scheduler makes the items",
    "tinygrad.schedule.allreduce": "tinsmith.schedule.multi.collectives: docs/devices.md",
    "tinygrad.schedule.indexing": _FUSION,
    "tinygrad.schedule.memory": "tinsmith.schedule.memory.memory_plan plans memory",
    "tinygrad.schedule.multi": "tinsmith.schedule.multi.sharding: docs/devices.md",
    "tinygrad.schedule.rangeify": _FUSION,
    "tinygrad.scheduler": "Tensor.schedule(); tinsmith.schedule.scheduler.Scheduler makes the items",
    "tinygrad.shape": "tinsmith.shape has ShapeTracker and View",
    "tinygrad.shape.shapetracker": "tinsmith.shape has ShapeTracker and View",
    "tinygrad.shape.symbolic": _SYMBOLIC,
    "tinygrad.shape.view": "tinsmith.shape has ShapeTracker and View",
    "tinygrad.spec": "CHECK_IR=1 checks programs; tinsmith.ir.verify.program",
    "tinygrad.tensor": "tinsmith.Tensor; tinsmith.tensor has a file per family of methods",
    "tinygrad.uop": "tinsmith.ir: docs/ir.md",
    "tinygrad.uop.decompositions": "tinsmith.codegen.decompose.decompose writes ops with others",
    "tinygrad.uop.divandmod": "tinsmith.ir.algebra.symbolic simplifies; its rules have names and laws: docs/ir.md",
    "tinygrad.uop.movement": "tinsmith.ir.movement",
    "tinygrad.uop.ops": "tinsmith.ir has Ops and UOp: docs/ir.md; rewrites are tinsmith.ir.rewrite",
    "tinygrad.uop.render": _PRINT,
    "tinygrad.uop.spec": "CHECK_IR=1 checks programs; tinsmith.ir.verify.program",
    "tinygrad.uop.symbolic": "tinsmith.ir.algebra.symbolic simplifies; its rules have names and laws: docs/ir.md",
    "tinygrad.uop.transcendental": "tinsmith.codegen.decompose.elementary, .sines and .powers",
    "tinygrad.uop.upat": "tinsmith.ir.rewrite.Pat",
    "tinygrad.uop.validate": "CHECK_IR=1 checks programs, CHECKED=1 indices; tinsmith.ir.verify.program",
    "tinygrad.uop.weak": "a Python number beside a tensor takes the tensor's dtype",
    "tinygrad.viz": "VIZ=1 shows how programs were made and run, python -m tinsmith viz TRACE a trace: docs/viz.md",
}


def place(module: str) -> str:
    """Return the replacement of a module, or of its nearest listed parent.

    >>> place("tinygrad.uop.upat"), place("tinygrad.renderer.ptx.quux")[:15]
    ('tinsmith.ir.rewrite.Pat', 'GPUs of NVIDIA ')
    """
    while module not in PLACES:
        module = module.rpartition(".")[0]
    return PLACES[module]
