"""Tables of tinygrad's modules and names: module → name → ``package.module:attribute``.

Only tables. A name that is in none of them raises ImportError and points to docs/rosetta.md.
"""
from __future__ import annotations

from typing import Final

from tinsmith.core.settings import DECLARED, ELSEWHERE

Names = dict[str, str]

_TENSOR: Final[Names] = {"Tensor": "tinsmith.tensor.tensor:Tensor",
                         "Function": "tinsmith.tensor.autograd.custom_gradient:Function"}
_DTYPE: Final[Names] = {
    "dtypes": "tinsmith.core.dtypes:dtypes", "DType": "tinsmith.core.dtypes:DType",
    "least_upper_dtype": "tinsmith.core.dtypes:promote", "to_dtype": "tinsmith.core.dtypes:to_dtype",
    "sum_acc_dtype": "tinsmith.core.dtypes:sum_dtype", "_to_np_dtype": "tinsmith.compat.state:_to_np_dtype",
    **{n: f"tinsmith.compat.state:{n}" for n in ("ConstType", "DTypeLike", "PyConst", "_from_np_dtype")}}
_DEVICE: Final[Names] = {
    "Device": "tinsmith.backend.device:Device", "Buffer": "tinsmith.backend.memory:Buffer",
    "BufferSpec": "tinsmith.backend.memory:BufferSpec", "BufferOptions": "tinsmith.backend.memory:BufferSpec",
    "Compiled": "tinsmith.compat.devices:Compiled", "Allocator": "tinsmith.compat.devices:Allocator",
    "LRUAllocator": "tinsmith.compat.devices:Allocator",
    "Compiler": "tinsmith.backend.device:Compiler", "Program": "tinsmith.backend.device:Program",
    "CompileError": "tinsmith.core.errors:CompileError"}
_JIT: Final[Names] = {"TinyJit": "tinsmith.compat.jit:TinyJit", "JitError": "tinsmith.core.errors:JitError",
                      **{n: f"tinsmith.jit:{n}" for n in ("CacheCollector", "JitItem")}}
_MULTI: Final[Names] = {"MultiLazyBuffer": "tinsmith.backend.shards:Shards"}
_QUEUE: Final[Names] = {n: f"tinsmith.runtime.command_queue:{n}" for n in ("CommandQueue", "CopyItem", "SyncItem",
                                                                           "WaitItem")}
_VARIABLE: Final[Names] = {"Variable": "tinsmith.tensor.sizes:Variable"}
_OPTIM: Final[Names] = {
    **{n: f"tinsmith.nn.optim:{n}" for n in ("Optimizer", "OptimizerGroup")},
    **{n: f"tinsmith.compat.optim:{n}" for n in ("SGD", "LARS", "Muon", "LAMB", "Adam", "AdamW")}}
_STATE: Final[Names] = {
    **{n: f"tinsmith.nn.state:{n}" for n in (
        "TensorIO", "get_parameters", "get_state_dict", "gguf_load", "safe_load_metadata", "tar_extract", "torch_load",
        "zip_extract")},
    **{n: f"tinsmith.compat.state:{n}" for n in (
        "accept_filename", "load_state_dict", "safe_load", "safe_save")}}
_LAYERS: Final[Names] = {
    **{n: f"tinsmith.nn:{n}" for n in (
        "BatchNorm", "BatchNorm2d", "BatchNorm3d", "Embedding", "GroupNorm", "InstanceNorm", "LSTMCell", "LayerNorm",
        "LayerNorm2d", "Linear", "RMSNorm")},
    **{n: f"tinsmith.compat.layers:{n}" for n in ("Conv1d", "Conv2d", "ConvTranspose1d", "ConvTranspose2d")}}
_SHAPE: Final[Names] = {"ShapeTracker": "tinsmith.shape:ShapeTracker", "View": "tinsmith.shape:View"}
_OPT: Final[Names] = {"Opt": "tinsmith.codegen.opt:Opt", "OptOps": "tinsmith.codegen.opt:OptOps"}
_UOP: Final[Names] = {"UOp": "tinsmith.ir:UOp", "Ops": "tinsmith.ir:Ops"}
_GROUPS: Final[Names] = {n: f"tinsmith.compat.uops:{n}" for n in (
    "UnaryOps", "BinaryOps", "TernaryOps", "ReduceOps", "BufferOps", "LoadOps", "MetaOps")}
_LAZY: Final[Names] = {"LazyOp": "tinsmith.compat.lazyop:LazyOp"}
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
_UOPS: Final[Names] = {**_UOP, "UOps": "tinsmith.compat.uops:UOps", "UOpGraph": "tinsmith.ir:ProgramBuilder"}
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
    **{n: f"tinsmith.compat.progress:{n}" for n in ("tqdm", "trange", "SI", "HMS")},
    **{n: f"tinsmith.compat.variables:{n}" for n in ("Context", "ContextVar", "getenv")}}

# Variables, also as names to import: those that tinygrad documents, and ours.
_VARIABLES: Final = (*ELSEWHERE, *(s.name for s in DECLARED), "DEFAULT_FLOAT", "DEFAULT_INT", "TRAINING")
_HELPERS |= {name: f"tinsmith.compat.variables:VARIABLES.{name}" for name in _VARIABLES}

# A module of these names is a package too: the modules below it are its attributes.
MODULES: Final[dict[str, Names]] = {
    "tinygrad": {**_TENSOR, **_JIT, **_DEVICE, **_DTYPE, **_VARIABLE, **_UOP, **_COUNTERS,
                 "function": "tinsmith.compat.jit:function", "fetch": "tinsmith.compat.helpers:fetch",
                 **{n: f"tinsmith.compat.variables:{n}" for n in ("Context", "getenv")},
                 "__version__": "tinsmith.compat.helpers:VERSION"},
    "tinygrad.tensor": {**_TENSOR, **_DTYPE, **_DEVICE, "cast": "typing:cast"},
    "tinygrad.dtype": _DTYPE,
    "tinygrad.function": {"function": "tinsmith.compat.jit:function"},
    "tinygrad.llm.gguf": {"gguf_load": "tinsmith.nn.io.gguf:gguf_load"},
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
    "tinygrad.nn.datasets": {"mnist": "tinsmith.compat.state:mnist", "cifar": "tinsmith.nn.datasets:cifar"},
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
    "KernelInfo": "what became of each axis is in its range: tinsmith.ir.ranges.Role; DEBUG=3 prints the opts",
    "MemBuffer": "a kernel's buffers are PARAM nodes with a number and a shape, printed as MemBuffer in trees",
    "Runner": "a loaded kernel is a tinsmith.backend.device.Program, one launch of it a Call",
    "CompiledRunner": "a loaded kernel is a tinsmith.backend.device.Program, one launch of it a Call",
    "CompiledASTRunner": "a loaded kernel is a tinsmith.backend.device.Program, one launch of it a Call",
    "JITRunner": "a loaded kernel is a tinsmith.backend.device.Program, one launch of it a Call",
    "_recurse_lb": "tinsmith.schedule.fusion.fusion.Fusion decides what has memory; DEBUG=3 prints why",
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
    "custom_kernel": "tinsmith.tensor.autograd.custom_gradient.Function is a formula with a gradient of your own; "
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
    "Estimates": "tinsmith.codegen.planner.work counts operations and bytes; GlobalCounters sums them up",
    "TensorCore": "tinsmith.ir.matrix_unit describes matrix units; Opt(OptOps.TC, …) uses one",
    "AxisType": "tinsmith.ir.ranges.Role", "KernelOptError": "tinsmith.core.errors.ArgumentError",
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
    "cache_dir": "tinsmith.core.disk_cache.cache_dir",
}

# Device names of the tutorials; the variable ALIAS adds to them and goes before them.
DEVICES: Final[Names] = {"CLANG": "CPU", "LLVM": "CPU", "EXT": "NPY", "NUMPY": "NPY", "GPU": "OPENCL"}
# Variables that choose a device in tinygrad, as in `CLANG=1 python script.py`.
DEVICE_VARIABLES: Final = ("CPU", "CLANG", "LLVM", "PYTHON", "GPU", "CUDA", "METAL", "WEBGPU", "HIP")
