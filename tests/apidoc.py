"""Generate docs/api.md, the table of public names of Tinsmith and tinygrad: ``python tests/apidoc.py``."""
from __future__ import annotations

import importlib
import inspect
import sys
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[1]
sys.path.insert(0, str(ROOT))

from tinsmith import Tensor, dtypes, fft, linalg, nn, random, special  # noqa: E402
from tinsmith.backend.device import Device  # noqa: E402
from tinsmith.codegen.opt import OptOps  # noqa: E402
from tinsmith.compat.conventions import _ADDED  # noqa: E402
from tinsmith.compat.module_table import METHODS, MODULES, PLACES, REASONS  # noqa: E402
from tinsmith.core.settings import DECLARED, ELSEWHERE  # noqa: E402

PAGE = ROOT / "docs" / "api.md"

INTRODUCTION = """# Every public name

Ours, and tinygrad's (0.14): what is *here* has the same name in `tinsmith`; what is *under `compat`* exists for scripts
that run with `python -m tinsmith.compat`; beside *no* stands what does its work. [rosetta.md](rosetta.md) says where
meanings differ. `python tests/apidoc.py` writes this page.
"""

# tinygrad's public names, by section.
TINYGRAD = {
    "Tensor": """T abs acos acosh add all allclose alu any arange argmax argmin argsort as_param asin asinh assign atan
        atanh avg_pool2d backward batchnorm bfloat16 binary_crossentropy binary_crossentropy_logits bitcast bitwise_and
        bitwise_not bitwise_or bitwise_xor bool call callify cast cat ceil celu chunk clamp clip clone const const_like
        contiguous contiguous_backward conv2d conv_transpose2d copysign cos cosh cross_entropy cummax cummin cumprod
        cumsum custom_kernel data decode_hevc_frame detach device diag diagonal div dot double dropout dtype einsum
        element_size elu empty empty_like eq erf exp exp2 expand eye flatten flip float floor fmod from_blob from_url
        full full_like gather gelu glorot_uniform grad gradient half hardsigmoid hardswish hardtanh hash image_conv2d
        image_dot int interpolate invalids is_floating_point is_param is_param_ isclose isfinite isinf isnan item
        kaiming_normal kaiming_uniform keccak layernorm leaky_relu lerp linear linear_with_vars linspace log log10 log2
        log_softmax logaddexp logcumsumexp logical_not logsigmoid logsumexp long lshift manual_seed masked_fill
        masked_select matmul max max_numel max_pool2d max_shape max_unpool2d maximum mean meshgrid min minimum mish mod
        mul multinomial nbytes ndim ne neg newton_schulz nll_loss nonzero normal normalize numel numpy one_hot ones
        ones_like pad pad_to permute pow prod qr quick_gelu rand rand_like randint randn randn_like random_bits randperm
        realize rearrange reciprocal relu relu6 repeat repeat_interleave replace reshape roll round rshift rsqrt
        scaled_dot_product_attention scaled_uniform scatter scatter_reduce schedule_linear selu sequential shape shard
        shard_ shard_like short shrink shrink_to sigmoid sign silu sin sinh size softmax softmin softplus softsign sort
        sparse_categorical_crossentropy split sqrt square squeeze stack std std_mean sub sum svd swish tan tanh threefry
        to to_ tolist topk transpose tril triu trunc ufix unflatten unfold uniform unsqueeze uop uprod usum var var_mean
        view where zeros zeros_like""",
    "nn": """BatchNorm BatchNorm2d BatchNorm3d Conv1d Conv2d ConvTranspose1d ConvTranspose2d Embedding GroupNorm
        InstanceNorm LSTMCell LayerNorm LayerNorm2d Linear RMSNorm""",
    "nn.optim": "Adam AdamW LAMB LARS Muon Optimizer OptimizerGroup SGD",
    "nn.optim.lr_scheduler": "",
    "nn.utils": "",
    "linalg": "",
    "fft": "",
    "special": "",
    "random": "",
    "nn.state": """TensorIO accept_filename fs_load fs_store get_parameters get_state_dict gguf_load load_state_dict
        safe_load safe_load_metadata safe_save tar_extract torch_load zip_extract""",
    "nn.datasets": "cifar mnist",
    "dtypes": """all bfloat16 bool char default_float default_int double finfo float float16 float32 float64 floats
        fp8_fnuz fp8_ocp fp8e4m3 fp8e4m3fnuz fp8e5m2 fp8e5m2fnuz fp8s from_py half int int16 int16s int32 int32s int64
        int64s int8 int8s ints is_bool is_float is_int is_unsigned long short sints uchar uint uint16 uint32 uint64
        uint8 uints ulong ushort void weakfloat weakint weaks""",
    "helpers": """Context ContextVar GlobalCounters Metadata Profiling Timing all_int all_same ansilen ansipad ansistrip
        argfix argsort canonicalize_strides cdiv ceildiv cmod colored colorize_float cpu_profile data64 data64_le dedup
        diskcache diskcache_clear diskcache_get diskcache_put fetch flat_mv flatten floordiv floormod from_mv fromimport
        fully_flatten get_child get_shape get_single_element getbits getenv hi32 lo32 make_tuple merge_dicts mv_address
        next_power2 panic partition perf_counter_us pluralize polyN prod profile_marker round_down round_up size_to_str
        stderr_log strides_for_shape temp time_to_str to_mv to_tuple tqdm trange unwrap word_wrap""",
    "tinygrad": """Context Device GlobalCounters Tensor TinyJit UOp Variable dtypes fetch function getenv""",
    "device": "Allocator Buffer BufferSpec CompileError Compiled Compiler Device LRUAllocator MultiBuffer Program",
    "engine.jit": "CapturedJit GraphRunner JitError TinyJit",
    "codegen.kernel, OptOps": "GROUP GROUPTOP LOCAL NOLOCALS PADTO SWAP TC THREAD UNROLL UPCAST",
    "devices": "AMD CL CPU CUDA DISK DSP HIP METAL NPY NULL NV PYTHON QCOM RDMA TINYFS WEBGPU",
    "renderers": """AMDRenderer CUDARenderer ClangRenderer HIPCCRenderer HIPRenderer IR3Renderer LLVMRenderer
        LVPRenderer MetalRenderer NAKRenderer NVCCRenderer OpenCLRenderer PTXRenderer QCOMCLRenderer WGSLRenderer
        X86Renderer""",
    "environment": """ALL2ALL ALLOW_TF32 ALLREDUCE_CAST AMX BEAM CACHELEVEL CAPTURE_PROCESS_REPLAY CAPTURING CCACHE
        CHECK_OOB DEBUG DEV DISABLE_FAST_IDIV DISALLOW_BROADCAST EMULATED_DTYPES FLOAT16 FUSE_ARANGE FUSE_OPTIM GRAPH
        IGNORE_BEAM_CACHE IMAGE JIT JITGRAPH JIT_BATCH_SIZE LRU MAX_BUFFER_SIZE MAX_KERNEL_BUFFERS NOLOCALS
        NO_MEMORY_PLANNER NOOPT NUM_CPU_THREADS OPENPILOT_HACKS PARALLEL PCONTIG PROFILE RING SCACHE SPEC
        SPLIT_REDUCEOP TC TC_OPT TC_SELECT TRACEMETA TRACK_MATCH_STATS TRANSCENDENTAL TUPLE_ORDER USE_ATOMICS
        VALIDATE_WITH_CPU VIZ WINO""",
    "nn.onnx": "OnnxRunner",
    "llm.gguf": "ggml_data_to_tensor gguf_load",
    "other names": "",
    "modules": " ".join(sorted(PLACES)),
    "programs": "tinygrad.llm tinygrad.nn.torch tinygrad.viz.cli tinygrad.viz.serve",
}
TINYGRAD["environment"] += " " + " ".join(ELSEWHERE)
TINYGRAD["other names"] = " ".join(sorted(REASONS.keys() - set(" ".join(TINYGRAD.values()).split())))
# For names missing in these sections: the reason, or the alternative.
INSTEAD = {
    "AMD": "sources, by the name HIP: docs/sources.md", "CL": "OPENCL",
    "DSP": "no device for Hexagon", "HIP": "its sources: docs/sources.md",
    "NULL": "Tensor.schedule(), explain() and estimate() work without running anything", "NV": "CUDA, by the driver",
    "QCOM": "OPENCL where the phone has a driver", "RDMA": "one machine only: docs/devices.md",
    "TINYFS": "files: nn.state.safe_load",
    "ggml_data_to_tensor": "nn.state.gguf_load gives tensors",
    "tinygrad.llm": "examples/language_model.py", "tinygrad.nn.torch": "torch.from_dlpack(t) and Tensor.from_dlpack(x)",
    "tinygrad.viz.cli": "python -m tinsmith viz", "tinygrad.viz.serve": "python -m tinsmith viz",
    **{f"{n}Renderer": "LLVM or C for CPUs, C-like text for GPUs: docs/new_accelerator.md" for n in (
        "AMD", "HIPCC", "IR3", "LVP", "NAK", "NVCC", "PTX", "QCOMCL", "X86")},
}
OUTSIDE = ("devices", "nn.onnx", "llm.gguf", "programs")  # sections whose names are told by INSTEAD alone, if not here
OURS: dict[str, Any] = {"Tensor": Tensor, "nn": nn, "nn.optim": nn.optim,
                        "nn.optim.lr_scheduler": nn.optim.lr_scheduler, "nn.utils": nn.utils, "nn.state": nn.state,
                        "linalg": linalg, "fft": fft, "special": special, "random": random,
                        "nn.datasets": nn.datasets, "dtypes": dtypes, "tinygrad": importlib.import_module("tinsmith")}
MODULE = {"Tensor": "", "dtypes": "", "tinygrad": "tinygrad"}


def public(section: str) -> list[str]:
    """Return the public names of a section."""
    owner = OURS.get(section)
    if owner is None:
        return []
    if inspect.ismodule(owner):
        listed = getattr(owner, "__all__", None)
        own = [n for n, v in vars(owner).items() if getattr(v, "__module__", None) == owner.__name__]
        return sorted(n for n in (listed or own) if not n.startswith("_"))
    return sorted(n for n in dir(owner) if not n.startswith("_"))


def place(section: str, name: str) -> tuple[str, str]:
    """Return (location of a name: "here", a module or "no"; its description or the reason)."""
    if (said := _said(section, name)) is not None:
        return said
    owner = OURS.get(section)
    if owner is not None and name in public(section):
        return "here", _line(inspect.getattr_static(owner, name, None))
    found = MODULES.get(MODULE.get(section, f"tinygrad.{section}"), {}).get(name)
    if section == "Tensor" and name in _ADDED:
        return "under `compat`", _line(_ADDED[name])
    if found is not None:
        module, _, attribute = found.partition(":")
        inside = module.startswith("tinsmith.compat")
        return "under `compat`" if inside else f"`{module}`", _line(
            inspect.getattr_static(importlib.import_module(module), attribute, None))
    reason = METHODS.get(name) if section == "Tensor" else REASONS.get(name)
    return ("no", reason) if reason else ("", "")


def _said(section: str, name: str) -> tuple[str, str] | None:
    """Return the same for a name that is not a module attribute."""
    if section == "environment":
        settings = {s.name: s.doc for s in DECLARED}
        return ("here", settings[name]) if name in settings else ("no", ELSEWHERE[name][1])
    if section == "modules":
        return "names" if name in MODULES else "no names of its own", PLACES[name]
    if section == "codegen.kernel, OptOps":
        return ("here", "docs/opts.md") if name in OptOps.__members__ else ("", "")
    if section == "devices" and name in Device.BUILT_IN:
        return "here", INSTEAD.get(name, "")
    if section == "renderers":
        found = next((n[name] for n in MODULES.values() if name in n), None)
        return ("no", INSTEAD[name]) if found is None else (f"`{found.partition(':')[0]}`", "")
    return ("no", INSTEAD[name]) if name in INSTEAD and section in OUTSIDE else None


def _line(value: Any) -> str:
    """Return the first line of a docstring."""
    if isinstance(value, (staticmethod, classmethod)):
        value = value.__func__
    elif isinstance(value, property):
        value = value.fget
    if value is dtypes or not (inspect.isroutine(value) or inspect.isclass(value) or inspect.ismodule(value)):
        return ""
    text = inspect.getdoc(value) or ""
    return text.split("\n\n")[0].replace("\n", " ").replace("|", "\\|")


def page() -> str:
    """Return the text of docs/api.md."""
    out = [INTRODUCTION]
    for section in TINYGRAD:
        theirs = set(TINYGRAD[section].split())
        names = sorted({*theirs, *public(section)})
        out += [f"## {section}", "", "| name | tinygrad's | where | what |", "| --- | --- | --- | --- |"]
        for name in names:
            where, what = place(section, name)
            out.append(f"| `{name}` | {'yes' if name in theirs else ''} | {where} | {what} |")
        out.append("")
    return "\n".join(out)


if __name__ == "__main__":
    PAGE.write_text(page(), "utf-8")
