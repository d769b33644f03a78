"""Tables of tinygrad's modules and names: module → name → ``package.module:attribute``.

The table of modules lists current and earlier tinygrad modules, and the Tinsmith modules that replace them. Each can be
imported. Its names are looked up in the table of names first; the text of a module is the answer for names that
Tinsmith does not have, also in the modules below it. A name in neither table raises ImportError and points to
docs/rosetta.md.
"""
from __future__ import annotations

from typing import Final

from tinsmith.core.settings import DECLARED, ELSEWHERE

_DEVICE_PARTS = "a device is made of the parts in tinsmith.backend.device: docs/new_accelerator.md"

_GENERATED = "no vendor's headers are bound; " + _DEVICE_PARTS

_FUSION = "tinsmith.schedule.fusion.rules decides what has memory; explain(why=...) says why"
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
    "tinygrad.device": _DEVICE_PARTS,
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
    "tinygrad.engine.worker": "tinsmith.codegen.transform.stages compiles in other threads",
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
    "tinygrad.llm.gguf": "tinsmith.nn.io.ggml.gguf_load",
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
    "tinygrad.renderer.amd": "there is no device AMD; " + _DEVICE_PARTS,
    "tinygrad.renderer.assembly": "the CPU's way without C is tinsmith.codegen.render.llvm",
    "tinygrad.renderer.isa": "the CPU's way without C is tinsmith.codegen.render.llvm",
    "tinygrad.renderer.nir": "tinsmith.codegen.render.opencl writes for GPUs that CUDA does not know",
    "tinygrad.renderer.ptx": "GPUs of NVIDIA get CUDA C from tinsmith.codegen.render.cuda",
    "tinygrad.renderer.wgsl": "tinsmith.codegen.render.wgsl writes WGSL",
    "tinygrad.runtime": _DEVICE_PARTS,
    "tinygrad.runtime.autogen": _GENERATED,
    "tinygrad.runtime.graph": "tinsmith.backend.program.Graph runs the launches of a capture",
    "tinygrad.runtime.lib": "tinsmith.backend.memory.Buffer is memory, tinsmith.backend.device has the other parts",
    "tinygrad.runtime.ops_amd": "there is no device AMD; " + _DEVICE_PARTS,
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
    "tinygrad.runtime.support": _DEVICE_PARTS,
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
    "tinygrad.spec": "CHECK_IR=1 checks programs; tinsmith.ir.verify",
    "tinygrad.tensor": "tinsmith.Tensor; tinsmith.tensor has a file per family of methods",
    "tinygrad.uop": "tinsmith.ir: docs/ir.md",
    "tinygrad.uop.decompositions": "tinsmith.codegen.decompose.decompose writes ops with others",
    "tinygrad.uop.divandmod": "tinsmith.ir.algebra.symbolic simplifies; its rules have names and laws: docs/ir.md",
    "tinygrad.uop.movement": "tinsmith.ir.uop",
    "tinygrad.uop.ops": "tinsmith.ir has Ops and UOp: docs/ir.md; rewrites are tinsmith.ir.rewrite",
    "tinygrad.uop.render": _PRINT,
    "tinygrad.uop.spec": "CHECK_IR=1 checks programs; tinsmith.ir.verify",
    "tinygrad.uop.symbolic": "tinsmith.ir.algebra.symbolic simplifies; its rules have names and laws: docs/ir.md",
    "tinygrad.uop.transcendental": "tinsmith.codegen.decompose.elementary, .sines and .powers",
    "tinygrad.uop.upat": "tinsmith.ir.rewrite.Pat",
    "tinygrad.uop.validate": "CHECK_IR=1 checks programs, CHECKED=1 indices; tinsmith.ir.verify",
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

Names = dict[str, str]

_TENSOR: Final[Names] = {"Tensor": "tinsmith.tensor.tensor:Tensor",
                         "Function": "tinsmith.tensor.autograd.function:Function"}

_DTYPE: Final[Names] = {
    "dtypes": "tinsmith.core.dtypes:dtypes", "DType": "tinsmith.core.dtypes:DType",
    "least_upper_dtype": "tinsmith.core.dtypes:promote", "to_dtype": "tinsmith.core.dtypes:to_dtype",
    "sum_acc_dtype": "tinsmith.core.dtypes:sum_dtype", "_to_np_dtype": "tinsmith.compat.nn:_to_np_dtype",
    **{n: f"tinsmith.compat.nn:{n}" for n in ("ConstType", "DTypeLike", "PyConst", "_from_np_dtype")}}

_DEVICE: Final[Names] = {
    "Device": "tinsmith.backend.device:Device", "Buffer": "tinsmith.backend.memory:Buffer",
    "BufferSpec": "tinsmith.backend.memory:BufferSpec", "BufferOptions": "tinsmith.backend.memory:BufferSpec",
    "Compiled": "tinsmith.compat.variables:Compiled", "Allocator": "tinsmith.compat.variables:Allocator",
    "LRUAllocator": "tinsmith.compat.variables:Allocator",
    "Compiler": "tinsmith.backend.device:Compiler", "Program": "tinsmith.backend.device:Program",
    "CompileError": "tinsmith.core.errors:CompileError"}

_JIT: Final[Names] = {"TinyJit": "tinsmith.compat.schedules:TinyJit", "JitError": "tinsmith.core.errors:JitError",
                      **{n: f"tinsmith.jit:{n}" for n in ("CacheCollector", "JitItem")}}
_MULTI: Final[Names] = {"MultiLazyBuffer": "tinsmith.backend.shards:Shards"}
_QUEUE: Final[Names] = {n: f"tinsmith.runtime.command_queue:{n}" for n in ("CommandQueue", "CopyItem", "SyncItem",
                                                                           "WaitItem")}
_VARIABLE: Final[Names] = {"Variable": "tinsmith.tensor.sizes.variable:Variable"}
_OPTIM: Final[Names] = {
    **{n: f"tinsmith.nn.optim:{n}" for n in ("Optimizer", "OptimizerGroup")},
    **{n: f"tinsmith.compat.nn:{n}" for n in ("SGD", "LARS", "Muon", "LAMB", "Adam", "AdamW")}}

_STATE: Final[Names] = {
    **{n: f"tinsmith.nn.state:{n}" for n in (
        "TensorIO", "get_parameters", "get_state_dict", "gguf_load", "safe_load_metadata", "tar_extract", "torch_load",
        "zip_extract")},
    **{n: f"tinsmith.compat.nn:{n}" for n in (
        "accept_filename", "load_state_dict", "safe_load", "safe_save")}}
_LAYERS: Final[Names] = {
    **{n: f"tinsmith.nn:{n}" for n in (
        "BatchNorm", "BatchNorm2d", "BatchNorm3d", "Embedding", "GroupNorm", "InstanceNorm", "LSTMCell", "LayerNorm",
        "LayerNorm2d", "Linear", "RMSNorm")},
    **{n: f"tinsmith.compat.nn:{n}" for n in ("Conv1d", "Conv2d", "ConvTranspose1d", "ConvTranspose2d")}}

_SHAPE: Final[Names] = {"ShapeTracker": "tinsmith.shape:ShapeTracker", "View": "tinsmith.shape:View"}
_OPT: Final[Names] = {"Opt": "tinsmith.codegen.opt:Opt", "OptOps": "tinsmith.codegen.opt:OptOps"}
_UOP: Final[Names] = {"UOp": "tinsmith.ir:UOp", "Ops": "tinsmith.ir:Ops"}

_GROUPS: Final[Names] = {n: f"tinsmith.compat.schedules:{n}" for n in (
    "UnaryOps", "BinaryOps", "TernaryOps", "ReduceOps", "BufferOps", "LoadOps", "MetaOps")}

_LAZY: Final[Names] = {"LazyOp": "tinsmith.compat.schedules:LazyOp"}

_SCHEDULE: Final[Names] = {
    "ScheduleItem": "tinsmith.schedule.schedule_item:ScheduleItem",
    **{n: f"tinsmith.compat.schedules:{n}" for n in ("create_schedule", "create_schedule_with_vars")}}
_CSTYLE: Final[Names] = {
    "CStyleLanguage": "tinsmith.codegen.render.cstyle:CRenderer",
    "ClangRenderer": "tinsmith.codegen.render.cstyle:CRenderer",
    "OpenCLRenderer": "tinsmith.codegen.render.opencl:OpenCLRenderer",
    "CUDARenderer": "tinsmith.codegen.render.cuda:CUDARenderer",
    "MetalRenderer": "tinsmith.codegen.render.metal:MetalRenderer",
    "HIPRenderer": "tinsmith.codegen.render.hip:HIPRenderer"}

_UOPS: Final[Names] = {**_UOP, "UOps": "tinsmith.compat.schedules:UOps", "UOpGraph": "tinsmith.ir:ProgramBuilder"}

_COUNTERS: Final[Names] = {"GlobalCounters": "tinsmith.core.counters:GlobalCounters"}

_HELPERS: Names = {
    **_COUNTERS, "colored": "tinsmith.core.counters:colored", "ansilen": "tinsmith.core.counters:visible_length",
    **{n: f"tinsmith.compat.helpers:{n}" for n in (
        "CI", "OSX", "WIN", "all_int", "all_same", "ansistrip", "argfix", "argsort", "ceildiv",
        "colorize_float", "dedup", "diskcache_clear", "fetch", "flat_mv", "flatten", "from_mv", "fully_flatten",
        "make_tuple", "merge_dicts", "mv_address", "partition", "prod", "round_up", "temp", "time_to_str",
        "to_mv", "unwrap", "Profiling", "Timing", "ansipad", "cdiv", "cmod", "data64", "data64_le",
        "floordiv", "floormod", "get_child", "get_shape", "get_single_element", "getbits", "hi32", "lo32",
        "next_power2", "panic", "perf_counter_us", "pluralize", "polyN", "profile_marker", "round_down", "size_to_str",
        "stderr_log", "strides_for_shape", "to_tuple", "word_wrap", "to_function_name")},
    **{n: f"tinsmith.compat.helpers:{n}" for n in ("tqdm", "trange", "SI", "HMS")},
    **{n: f"tinsmith.compat.variables:{n}" for n in ("Context", "ContextVar", "getenv")}}

# Variables, also as names to import: those that tinygrad documents, and ours.
_VARIABLES: Final = (*ELSEWHERE, *(s.name for s in DECLARED), "DEFAULT_FLOAT", "DEFAULT_INT", "TRAINING")
_HELPERS |= {name: f"tinsmith.compat.variables:VARIABLES.{name}" for name in _VARIABLES}

# A module of these names is a package too: the modules below it are its attributes.
MODULES: Final[dict[str, Names]] = {
    "tinygrad": {**_TENSOR, **_JIT, **_DEVICE, **_DTYPE, **_VARIABLE, **_UOP, **_COUNTERS,
                 "function": "tinsmith.compat.schedules:function", "fetch": "tinsmith.compat.helpers:fetch",
                 **{n: f"tinsmith.compat.variables:{n}" for n in ("Context", "getenv")},
                 "__version__": "tinsmith.compat.helpers:VERSION"},
    "tinygrad.tensor": {**_TENSOR, **_DTYPE, **_DEVICE, "cast": "typing:cast"},
    "tinygrad.dtype": _DTYPE,
    "tinygrad.function": {"function": "tinsmith.compat.schedules:function"},
    "tinygrad.llm.gguf": {"gguf_load": "tinsmith.nn.io.ggml:gguf_load"},
    "tinygrad.device": _DEVICE,
    "tinygrad.helpers": _HELPERS,
    "tinygrad.jit": _JIT,
    "tinygrad.multi": _MULTI,
    "tinygrad.features.multi": _MULTI,
    "tinygrad.commandqueue": _QUEUE,
    "tinygrad.features.jit": _JIT,
    "tinygrad.engine.jit": _JIT,
    "tinygrad.engine.commandqueue": _QUEUE,
    "tinygrad.engine.schedule": _SCHEDULE,
    "tinygrad.engine.realize": {"run_schedule": "tinsmith.compat.schedules:run_schedule"},
    "tinygrad.realize": {"run_schedule": "tinsmith.compat.schedules:run_schedule"},
    "tinygrad.renderer": {"Renderer": "tinsmith.codegen.render.base:Renderer"},
    "tinygrad.renderer.cstyle": _CSTYLE,
    "tinygrad.renderer.wgsl": {"WGSLRenderer": "tinsmith.codegen.render.wgsl:WGSLRenderer"},
    "tinygrad.renderer.llvmir": {"LLVMRenderer": "tinsmith.codegen.render.llvm:LLVMRenderer"},
    "tinygrad.nn": _LAYERS,
    "tinygrad.nn.optim": _OPTIM,
    "tinygrad.nn.onnx": {"OnnxRunner": "tinsmith.nn.onnx:OnnxRunner"},
    "tinygrad.nn.state": _STATE,
    "tinygrad.nn.datasets": {"mnist": "tinsmith.compat.nn:mnist", "cifar": "tinsmith.nn.datasets:cifar"},
    "tinygrad.shape.shapetracker": _SHAPE,
    "tinygrad.shape.symbolic": {**_VARIABLE, "sint": "tinsmith.shape.sint:SInt"},
    "tinygrad.shape.view": {"View": "tinsmith.shape:View", "_merge_dims": "tinsmith.shape:merge_dims"},
    "tinygrad.ops": {**_UOPS, **_GROUPS, **_VARIABLE, **_LAZY},
    "tinygrad.uop.ops": {**_UOP, **_VARIABLE, "sint": "tinsmith.shape.sint:SInt"},
    "tinygrad.codegen.kernel": _OPT,
    "tinygrad.codegen.opt": _OPT,
    "tinygrad.codegen.opt.kernel": _OPT,
    "tinygrad.codegen.linearizer": _UOPS,
    "tinygrad.codegen.uops": _UOPS,
    "tinygrad.codegen.uopgraph": _UOPS,
    "tinygrad.runtime.ops_cpu": {"CPUDevice": "tinsmith.backend.cpu.device:CPUDevice"},
    "tinygrad.runtime.ops_clang": {"ClangDevice": "tinsmith.backend.cpu.device:CPUDevice"},
    "tinygrad.runtime.ops_npy": {"NpyDevice": "tinsmith.backend.npy.device:DEVICE"},
    "tinygrad.runtime.ops_python": {"PythonDevice": "tinsmith.backend.python.device:DEVICE"},
}

# Names that a tutorial or tinygrad's documentation uses, with what is said about them instead of "no such name".
REASONS: Names = {
    "MultiLazyBuffer": "a tensor over several devices is a SHARD node: Tensor.shard",
    "LazyBuffer": "a tensor's graph is a tinsmith.ir.UOp: Tensor.uop",
    "Kernel": "tinsmith.with_opts(tensor, [Opt(...)]) applies opts by hand, to a tinsmith.codegen.kernel.Kernel",
    "KernelInfo": "what became of each axis is in its range: tinsmith.ir.structure.Role; DEBUG=3 prints the opts",
    "MemBuffer": "a kernel's buffers are PARAM nodes with a number and a shape, printed as MemBuffer in trees",
    "Runner": "a loaded kernel is a tinsmith.backend.device.Program, one launch of it a Call",
    "CompiledRunner": "a loaded kernel is a tinsmith.backend.device.Program, one launch of it a Call",
    "CompiledASTRunner": "a loaded kernel is a tinsmith.backend.device.Program, one launch of it a Call",
    "JITRunner": "a loaded kernel is a tinsmith.backend.device.Program, one launch of it a Call",
    "_recurse_lb": "tinsmith.schedule.fusion.fusion.Fusion decides what has memory; explain(why=...) says why",
    "_schedule_one": "tinsmith.schedule.scheduler.Scheduler makes the items; Tensor.schedule() shows them",
    "mlops": "gradient rules stand in the op table, tinsmith.ir.ops; tinsmith.Function is for rules of your own",
    "BufferCopy": "a copy is a step of a schedule without a program, tinsmith.runtime.step.Step",
    "ExecItem": "a step of a schedule is a tinsmith.runtime.step.Step",
    "ProgramSpec": "what launching a kernel needs to know is a tinsmith.codegen.launch.Launch",
    "Linearizer": "tinsmith.codegen.compile_kernel.compile_kernel goes from a kernel's graph to its UOps and source",
}

# Methods of tinygrad's Tensor that are not here, with what is.
METHODS: Final[Names] = {
    "as_param": "a captured function finds its inputs itself: TinyJit",
    "call": "a function's graph becomes part of its caller's: call it",
    "callify": "a function's graph becomes part of its caller's: call it",
    "custom_kernel": "tinsmith.tensor.autograd.function.Function is a formula with a gradient of your own; "
                     "tinsmith.runtime.custom_program.run_program runs a kernel made of UOps",
    "decode_hevc_frame": "no device decodes video: decode on the host, Tensor(array)",
    "linear_with_vars": "Tensor.schedule() gives the program, tinsmith.Variable binds its variables",
    "threefry": "Tensor.random_bits, Tensor.manual_seed and tinsmith.tensor.create.random.threefry2x32",
}

_CACHE = "functools.cache keeps results in a process, tinsmith.core.disk_cache files on disk"
REASONS |= {
    "fs_load": "there is no store of tensors by hash: safe_load, or Tensor(Path)",
    "fs_store": "there is no store of tensors by hash: safe_save, or tensor.to('disk:path')",
    "weakfloat": "a Python number beside a tensor takes the tensor's dtype; alone it is dtypes.default_float",
    "weakint": "a Python number beside a tensor takes the tensor's dtype; alone it is dtypes.default_int",
    "weaks": "a Python number beside a tensor takes the tensor's dtype",
    "Metadata": "a node knows the method and the line that made it: UOp.origin",
    "canonicalize_strides": "tinsmith.shape.View.create makes strides of axes of size 1 zero",
    "cpu_profile": "PROFILE=1 times kernels; Timing and Profiling time Python",
    "diskcache": _CACHE, "diskcache_get": _CACHE, "diskcache_put": _CACHE,
    "fromimport": "importlib.import_module",
    "CapturedJit": "TinyJit.captured and TinyJit.jit_cache say what is replayed",
    "GraphRunner": "tinsmith.backend.program.Graph runs the launches of a capture",
    "MultiBuffer": "tinsmith.backend.shards.Shards",
    "PatternMatcher": "tinsmith.ir.rewrite.RuleSet, a list of named Rules", "UPat": "tinsmith.ir.rewrite.Pat",
    "graph_rewrite": "tinsmith.ir.rewrite.rewrite",
    "PtrDType": "a dtype with .pointer; tinsmith.ir.Ops.DEFINE_GLOBAL and its like have one",
    "ImageDType": "there are no image dtypes, and nothing takes their place",
    "NumNode": "an int; other sizes are UOps made of tinsmith.Variable",
    "Node": "a size is an int or a UOp made of tinsmith.Variable",
    "beam_search": "BEAM=2 searches: docs/search.md; tinsmith.inspect.search.search",
    "MetalDevice": "tinsmith.backend.metal.device",
    "PTXRenderer": "GPUs of NVIDIA get CUDA C from tinsmith.codegen.render.cuda",
    "AMDRenderer": "there is no device AMD; tinsmith.codegen.render.hip writes HIP for its GPUs",
    "Estimates": "tinsmith.codegen.planner.cost counts operations and bytes; GlobalCounters sums them up",
    "TensorCore": "tinsmith.ir.matrix_unit describes matrix units; Opt(OptOps.TC, …) uses one",
    "AxisType": "tinsmith.ir.structure.Role", "KernelOptError": "tinsmith.core.errors.ArgumentError",
    "ProfileEvent": "PROFILE=1 times what runs", "Target": "tinsmith.target.target.Target",
    "GroupOp": "tinsmith.ir.Ops; an op's .kind says of which group it is",
    "lower_schedule": "Tensor.schedule() compiles; CommandQueue(schedule)() runs",
    "get_runner": "tinsmith.codegen.compile_kernel.compile_kernel",
    "MallocAllocator": "tinsmith.backend.cpu.device.HostAllocator",
    "print_tree": "Tensor.schedule()[-1].tree()", "print_uops": "DEBUG=5 prints a kernel's UOps",
    "compute_gradient": "Tensor.gradient and Tensor.backward",
    "truncate": "Tensor.cast; a dtype's .numpy is NumPy's type",
    "RawBuffer": "tinsmith.backend.memory.Buffer",
    "DTYPES_DICT": "tinsmith.dtypes; dtypes.all has all of them",
    "cache_dir": "tinsmith.core.cache_security.cache_dir",
}

# Device names of the tutorials; the variable ALIAS adds to them and goes before them.
DEVICES: Final[Names] = {"CLANG": "CPU", "LLVM": "CPU", "EXT": "NPY", "NUMPY": "NPY", "GPU": "OPENCL"}
# Variables that choose a device in tinygrad, as in `CLANG=1 python script.py`.
DEVICE_VARIABLES: Final = ("CPU", "CLANG", "LLVM", "PYTHON", "GPU", "CUDA", "METAL", "WEBGPU", "HIP")
