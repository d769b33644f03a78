"""Names of tensor methods: other names that work, and names that do not exist.

``same`` makes another name of a method, as PyTorch and the tutorials have them, and ``in_place`` its form ``name_``;
``ABSENT`` has PyTorch names that tensors lack, and the replacement that the error message of each suggests.
"""
from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any, TypeVar, cast

from tinsmith.core.suggestions import guided
from tinsmith.runtime.thread_turns import writing
from tinsmith.tensor.interop.protocols import Interop
from tinsmith.tensor.math.table import MISSING

_NEW = "the form that makes a new tensor, x = x.{}(...)"
_PAIRS = "there is no complex dtype: pairs along a last axis of size 2 are complex numbers, {}"
_SPARSE = "there are no sparse tensors: .nonzero() has positions, x[mask] values, scatter_add writes"
_QUANTIZED = "there are no quantized dtypes: nn.state.gguf_load reads quantized weights, x.div(scale).round() quantizes"
_MEMORY = "memory is the device's: .numpy() copies it to the host, .to(device) to another device"
_HOOK = "tinsmith.Function, which has a backward of its own (docs/gradients.md)"
_DATA = "Tensor(data)"
_SPLIT = "the same without unsafe_"


def _each(names: str, mend: str) -> dict[str, str]:
    return {name: mend.format(name.rstrip("_")) for name in names.split()}

ABSENT: dict[str, str] = {
    **_each("transpose_ t_ squeeze_ unsqueeze_ swapaxes_ swapdims_ detach_ eq_ ne_ lt_ le_ gt_ ge_ greater_ "
            "greater_equal_ less_ less_equal_ not_equal_ logical_and_ logical_or_ logical_xor_ logical_not_ "
            "mvlgamma_ polygamma_ nextafter_ renorm_",
            _NEW),
    **_each("resize resize_ resize_as resize_as_ set_",
            "x.replace(other), which makes x another tensor; .reshape, .pad_to"),
    **_each("as_strided as_strided_ as_strided_scatter",
            "a view by .reshape, .permute, .unfold or x[a:b:c]; there are no strides"),
    **_each("stride storage_offset is_contiguous is_set_to dim_order",
            "nothing: strides are the compiler's affair; .contiguous() makes a dense copy"),
    **_each("data_ptr const_data_ptr storage untyped_storage storage_type is_shared share_memory_ is_pinned pin_memory "
            "record_stream", _MEMORY),
    **_each("register_hook register_post_accumulate_grad_hook grad_fn", _HOOK),
    "retains_grad": "x.requires_grad",
    **_each("apply_ map_ map2_", "tensor methods, or Tensor(np.vectorize(f)(x.numpy()))"),
    **_each("real", _PAIRS.format("and x[..., 0] their real parts")),
    **_each("imag", _PAIRS.format("and x[..., 1] their imaginary parts")),
    **_each("conj conj_physical conj_physical_ resolve_conj is_conj",
            _PAIRS.format("x * Tensor([1.0, -1.0]) conjugates")),
    **_each("resolve_neg is_neg", "x itself"),
    "angle": _PAIRS.format("x[..., 1].atan2(x[..., 0]) their angles"),
    **_each("cfloat cdouble chalf view_as_complex view_as_real", _PAIRS.format("x.complex() makes them")),
    **_each("eig eigvals symeig", ".eigh(), .eigvalsh() of symmetric matrices; the values of others are complex: "
            "np.linalg.eig(x.numpy())"),
    **_each("geqrf orgqr ormqr householder_product", ".qr()"),
    **_each("lu_solve lu_factor lu_factor_ex", ".solve(), or .lu()"),
    **_each("cholesky_ex inv_ex solve_ex", "the same without _ex, which does not check either"),
    **_each("tensorinv tensorsolve", ".inv() and .solve() of reshaped tensors"),
    **_each("matrix_norm vector_norm frobenius_norm nuclear_norm", ".norm(p, dim), or .svdvals().sum(-1)"),
    **_each("hfft2 hfftn ihfft2 ihfftn", ".hfft(), .ihfft() along one axis, .fftn() and .ifftn() along the others"),
    "multi_dot": ".chain_matmul()",
    "get_device": "x.device",
    **_each("ipu xpu mtia hpu", "x.to(device), with a device of Device.known()"),
    **_each("is_inference is_ipu is_maia is_meta is_mkldnn is_mps is_mtia is_vulkan is_xla is_xpu is_nested "
            "is_distributed is_quantized is_sparse is_sparse_csr layout names",
            "x.device and x.dtype, which say all there is"),
    **_each("to_sparse to_sparse_bsc to_sparse_bsr to_sparse_coo to_sparse_csc to_sparse_csr to_dense coalesce "
            "indices values is_coalesced sparse_dim dense_dim sparse_mask sparse_resize_ sparse_resize_and_clear_ "
            "smm sspaddmm crow_indices col_indices ccol_indices row_indices resize_as_sparse_ to_padded_tensor "
            "to_mkldnn",
            _SPARSE),
    **_each("dequantize int_repr q_scale q_zero_point q_per_channel_axis q_per_channel_scales "
            "q_per_channel_zero_points qscheme",
            _QUANTIZED),
    **_each("unsafe_chunk unsafe_split unsafe_split_with_sizes", _SPLIT),
    **_each("tensor as_tensor asarray from_numpy scalar_tensor new", _DATA),
    **_each("is_tensor", "isinstance(x, Tensor)"),
    "from_file": "Tensor(pathlib.Path(name))",
    **_each("load save", "nn.state.torch_load, safe_load and safe_save"),
    **_each("enable_grad set_grad_enabled inference_mode is_grad_enabled",
            "with Tensor.no_grad(): turns gradients off"),
    **_each("get_default_dtype set_default_dtype", "dtypes.default_float"),
    **_each("set_default_device get_default_device", "Device.DEFAULT"),
    **_each("seed initial_seed get_rng_state set_rng_state", "Tensor.manual_seed(seed)"),
    **_each("compile", "@TinyJit"),
    **_each("range", "Tensor.arange(start, stop + step, step)"),
    **_each("layer_norm", ".layernorm(axis), or nn.LayerNorm"),
    **_each("batch_norm", ".batchnorm(...), or nn.BatchNorm"),
    **_each("group_norm", "nn.GroupNorm"),
    **_each("instance_norm", "nn.InstanceNorm"),
    **_each("conv1d conv3d", ".conv2d(), which takes one to three axes"),
    **_each("conv_transpose1d conv_transpose3d", ".conv_transpose2d(), which takes one to three axes"),
    **_each("max_pool1d max_pool3d", ".max_pool2d(kernel_size), which takes as many axes as sizes"),
    **_each("avg_pool1d avg_pool3d", ".avg_pool2d(kernel_size), which takes as many axes as sizes"),
    **_each("max_unpool1d max_unpool3d", ".max_unpool2d()"),
    **_each("alpha_dropout feature_alpha_dropout dropout1d dropout2d dropout3d", ".dropout(p)"),
    **_each("upsample upsample_nearest upsample_bilinear", ".interpolate(size, mode)"),
    **_each("result_type promote_types", "(x + y).dtype"),
    **_each("igamma igammac igamma_ igammac_ nextafter frexp renorm ldl_factor ldl_factor_ex ldl_solve",
            "SciPy or NumPy on x.numpy()"),
    **dict.fromkeys(MISSING, "SciPy or NumPy on x.numpy()"),
    "logspace": "Tensor.linspace(start, stop, steps).mul(math.log(base)).exp()",
    "kaiser_window": "Tensor.hann_window, hamming_window, blackman_window or bartlett_window",
    "nonzero_static": ".nonzero(size=n)",
    "hash_tensor": ".hash()",
    **_each("adaptive_avg_pool1d adaptive_avg_pool2d adaptive_avg_pool3d", "nn.AdaptiveAvgPool2d(size)(x); 1d, 3d"),
    **_each("adaptive_max_pool1d adaptive_max_pool2d adaptive_max_pool3d adaptive_max_pool1d_with_indices "
            "adaptive_max_pool2d_with_indices adaptive_max_pool3d_with_indices fractional_max_pool2d "
            "fractional_max_pool3d fractional_max_pool2d_with_indices fractional_max_pool3d_with_indices",
            "nn.AdaptiveMaxPool2d(size)(x); 1d, 3d; return_indices=True"),
    **_each("max_pool1d_with_indices max_pool2d_with_indices max_pool3d_with_indices",
            ".max_pool2d(kernel_size, return_indices=True)"),
    **_each("lp_pool1d lp_pool2d lp_pool3d", "(x ** p).avg_pool2d(kernel_size) times the size, to the power 1/p"),
    **_each("affine_grid grid_sample", "x[..., i, j] at the places around, weighted by their distances"),
    **_each("fold", ".scatter_reduce with the places of the windows"),
    "bilinear": 'Tensor.einsum("ni,oij,nj->no", x, weight, y)',
    "conv_tbc": ".permute(1, 2, 0).conv2d()",
    "ctc_loss": "the recursion written with tensor methods: tests/compat/programs/speech_ctc.py",
    "embedding_bag": ".embedding(weight).sum(1), or .mean(1)",
    **_each("grouped_mm scaled_grouped_mm scaled_mm", ".matmul() of batches, with the scales multiplied"),
    "linear_cross_entropy": ".linear(weight).cross_entropy(target)",
    "local_response_norm": ".square().avg_pool2d over the channels",
    "multi_head_attention_forward": "nn.MultiheadAttention, or .scaled_dot_product_attention()",
    "multilabel_soft_margin_loss": ".binary_crossentropy_logits(target)",
    **_each("multi_margin_loss multilabel_margin_loss",
            "(margin - x.gather(1, label) + x).relu() without the label's own"),
    "triplet_margin_with_distance_loss": "(d(x, positive) - d(x, negative) + margin).relu().mean()",
    "native_channel_shuffle": ".channel_shuffle()",
    "pdist": ".cdist(x), above the diagonal",
    **_each("rrelu rrelu_", ".leaky_relu() with a random slope"),
    "threshold_": "the form that makes a new tensor, x = x.threshold(...)",
}


M = TypeVar("M", bound=Callable[..., Any])


def _example(method: Callable[..., Any], name: str) -> str:
    """Return the first example of a method, with another name in it."""
    lines = (method.__doc__ or "").splitlines()
    begin = next((i for i, line in enumerate(lines) if ">>>" in line), len(lines))
    end = next((i for i in range(begin, len(lines)) if not lines[i].strip()), len(lines))
    return "\n".join(line.strip() for line in lines[begin:end]).replace(f".{method.__name__}(", f".{name}(")


def _named(method: Callable[..., Any], name: str, does: str, example: str) -> Callable[..., Any]:
    method.__code__ = method.__code__.replace(co_name=name)
    method.__name__, method.__qualname__, method.__module__ = name, f"Tensor.{name}", "tinsmith.tensor.tensor"
    method.__doc__ = f"{does}\n\n{example}\n"
    return method


def same(name: str, method: M) -> M:
    """Return ``method`` by another name."""
    found = guided(method)
    return cast(M, _named(found, name, f"The same as ``{method.__name__}``.", _example(method, name)))


def in_place(method: M, example: str = "") -> M:
    """Return ``method`` whose result is written to the memory of the tensor, which it returns."""
    name = f"{method.__name__}_"

    @functools.wraps(method)
    def write(self: Interop, *args: Any, **keywords: Any) -> Interop:
        with writing(self):
            return self._become(name, method(self, *args, **keywords))

    does = f"``{method.__name__}``, written to this tensor's memory, which is returned."
    return cast(M, _named(guided(write), name, does, example or _example(method, name)))
