"""ONNX models: part of the standard's node tests, and valid and invalid files and inputs. ``python -m
tests.nn.onnx_nodes`` runs all node tests; docs/formats.md lists how many pass."""
from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tinsmith import Tensor, TinyJit
from tinsmith.core.errors import ArgumentError, FileFormatError, ShapeError
from tinsmith.nn.onnx import OPERATORS, OnnxRunner

onnx = pytest.importorskip("onnx", reason="pip install 'tinsmith[onnx]'")
from onnx import TensorProto, helper, numpy_helper  # noqa: E402

from tests.nn import onnx_nodes  # noqa: E402

CASES = """
add_bcast and2d argmax_keepdims_random averagepool_2d_ceil batchnorm_epsilon cast_FLOAT_to_INT4 ceil
clip_default_min concat_2d_axis_1 conv_with_autopad_same constantofshape_float_ones convinteger_with_padding
convtranspose_group_2 cumsum_2d_axis_1 depthtospace_crd_mode_example dequantizelinear_axis dft_axis
dynamicquantizelinear einsum_batch_diagonal expand_dim_changed gather_negative_indices
gathernd_example_int32_batch_dim1 gemm_all_attributes gridsample_bicubic group_normalization_example gru_defaults if
layer_normalization_4d_axis1 loop11 lstm_bidirectional lstm_with_peepholes matmul_3d
maxpool_with_argmax_2d_precomputed_pads maxunpool_export_with_output_shape mod_mixed_sign_int64 nllloss_NCd1d2
nonmaxsuppression_two_classes nonzero_example onehot_negative_indices optional_has_element_empty_optional_input
qlinearconv qlinearmatmul_2D_int8_float32 reduce_log_sum_exp_negative_axes_keepdims_random reflect_pad
reshape_zero_dim resize_upsample_sizes_cubic roialign_mode_max rotary_embedding_interleaved scan9_sum
scatter_elements_with_reduction_min scatternd_multiply sequence_map_add_1_sequence_1_tensor shape_end_negative_1
slice_neg_steps softmax_axis_0 split_to_sequence_1 stft top_k_negative_axis tril_square_neg
unique_sorted_with_axis_3d unsqueeze_two_axes where_example attention_4d_gqa_with_past_and_present
rms_normalization_4d_axis0 sce_mean_weight_ii col2im_pads deform_conv_with_mask_bias momentum adam swish xor3d
string_concat_broadcasting string_split_maxsplit string_split_empty_tensor tfidfvectorizer_tf_batch_uniandbigrams_skip5
strnormalizer_export_monday_casesensintive_lower strnormalizer_export_monday_empty_output
ai_onnx_ml_label_encoder_string_int ai_onnx_ml_label_encoder_tensor_mapping
ai_onnx_ml_array_feature_extractor cast_e8m0_FLOAT_to_FLOAT8E8M0
"""


@pytest.fixture(scope="module")
def standard() -> dict[str, Any]:
    return {case.name.removeprefix("test_"): case for case in onnx_nodes.cases()}


@pytest.mark.parametrize("name", CASES.split())
def test_of_the_standard(standard: dict[str, Any], name: str) -> None:
    onnx_nodes.check(standard[name])


def model(*nodes: Any, inputs: dict[str, Any], outputs: tuple[str, ...], constants: dict[str, np.ndarray] | None = None,
          opset: int = 18) -> Any:
    """Return a model of nodes; inputs are shapes by name."""
    return helper.make_model(helper.make_graph(
        nodes, "made", [helper.make_tensor_value_info(n, TensorProto.FLOAT, s) for n, s in inputs.items()],
        [helper.make_tensor_value_info(n, TensorProto.FLOAT, None) for n in outputs],
        [numpy_helper.from_array(v, n) for n, v in (constants or {}).items()]),
        opset_imports=[helper.make_opsetid("", opset)])


def node(kind: str, inputs: str, outputs: str, **attributes: Any) -> Any:
    return helper.make_node(kind, inputs.split(), outputs.split(), **attributes)


WORK = {"x": ["n", 3]}
LINEAR = model(node("MatMul", "x w", "h"), node("Shape", "h", "s"), node("Gather", "s zero", "n"),
               node("Concat", "n rest", "shape", axis=0), node("Reshape", "h shape", "y"), inputs=WORK, outputs=("y",),
               constants={"w": np.arange(12, dtype=np.float32).reshape(3, 4), "zero": np.array([0]),
                          "rest": np.array([2, 2])})


@pytest.mark.parametrize("source", [Path, str, "tensor", "proto"])
def test_where_a_model_comes_from(tmp_path: Path, source: Any) -> None:
    path = tmp_path / "x.onnx"
    path.write_bytes(LINEAR.SerializeToString())
    given = {"tensor": Tensor(path), "proto": LINEAR}[source] if isinstance(source, str) else source(path)
    runner = OnnxRunner(given)
    assert runner.graph_inputs["x"].shape == ("n", 3) and runner.graph_outputs == ["y"]
    x = np.ones((2, 3), np.float32)
    assert runner({"x": x})["y"].numpy().reshape(2, 4).tolist() == (x @ np.arange(12).reshape(3, 4)).tolist()


def test_an_input_of_another_rank_is_an_error() -> None:
    with pytest.raises(ArgumentError, match=r"'x' has the shape \(3,\).*2 axes: \(n, 3\)"):
        OnnxRunner(LINEAR)({"x": np.ones(3, np.float32)})


@pytest.mark.parametrize("mode", ["nearest", "linear", "cubic"])
@pytest.mark.parametrize("factor", [0.6, 1.5, 2.3])
def test_aligned_corners_meet_though_the_size_is_rounded(factor: float, mode: str) -> None:
    """The last output element is the last input element: the step follows from the size after rounding."""
    made = model(node("Resize", "x roi scales", "y", mode=mode, coordinate_transformation_mode="align_corners"),
                 inputs={"x": [1, 1, 7]}, outputs=("y",),
                 constants={"scales": np.array([1, 1, factor], np.float32), "roi": np.array([], np.float32)})
    x = np.linspace(0, 6, 7, dtype=np.float32).reshape(1, 1, 7)
    y = OnnxRunner(made)({"x": x})["y"].numpy()[0, 0]
    new = int(7 * np.float32(factor))
    assert y.shape == (new,) and y[0] == 0 and abs(y[-1] - 6) < 1e-5
    if mode == "linear":
        np.testing.assert_allclose(y, np.linspace(0, 6, new), atol=1e-5)


def test_a_loop_without_turns_collects_rows_of_the_declared_shape() -> None:
    made, number, flag = helper.make_tensor_value_info, TensorProto.INT64, TensorProto.BOOL
    body = helper.make_graph(
        [node("Identity", "a", "b"), node("Identity", "a", "row"), node("Identity", "c", "d")], "body",
        [made("i", number, []), made("c", flag, []), made("a", TensorProto.FLOAT, [3])],
        [made("d", flag, []), made("b", TensorProto.FLOAT, [3]), made("row", TensorProto.FLOAT, [3])])
    loop = helper.make_node("Loop", ["turns", "", "x"], ["last", "rows"], body=body)
    for turns in (0, 2):
        runner = OnnxRunner(model(loop, inputs={"x": [3]}, outputs=("rows",),
                                  constants={"turns": np.array(turns, np.int64)}))
        assert runner({"x": np.ones(3, np.float32)})["rows"].shape == (turns, 3)


def test_a_model_is_captured() -> None:
    """Shape arithmetic is computed on the host, before and during capture."""
    runner = OnnxRunner(LINEAR)
    step = TinyJit(lambda x: runner({"x": x})["y"].realize())
    for k in range(4):
        assert step(Tensor.full((2, 3), float(k)).contiguous().realize()).shape == (2, 2, 2)
    assert len(step.captures) == 1 and step.replays == 2


def test_data_beside_the_model(tmp_path: Path) -> None:
    made = model(node("Add", "x big", "y"), inputs={"x": [2]}, outputs=("y",),
                 constants={"big": np.array([1.0, 2.0], np.float32)})
    onnx.save_model(made, tmp_path / "x.onnx", save_as_external_data=True, location="data.bin", size_threshold=0)
    assert OnnxRunner(tmp_path / "x.onnx")({"x": np.zeros(2)})["y"].tolist() == [1, 2]
    (tmp_path / "data.bin").unlink()
    with pytest.raises(FileFormatError, match="'big'"):
        OnnxRunner(tmp_path / "x.onnx")


def test_functions_of_a_model() -> None:
    """An operator defined in the model, which passes its attribute on."""
    inner = helper.make_node("LeakyRelu", ["a"], ["b"])
    reference = onnx.AttributeProto(name="alpha", ref_attr_name="slope", type=onnx.AttributeProto.FLOAT)
    inner.attribute.append(reference)
    function = helper.make_function("own", "Leaky", ["a"], ["b"], [inner], [helper.make_opsetid("", 18)], ["slope"])
    made = model(helper.make_node("Leaky", ["x"], ["y"], domain="own", slope=0.5), inputs={"x": [2]}, outputs=("y",))
    made.functions.append(function)
    made.opset_import.append(helper.make_opsetid("own", 1))
    assert OnnxRunner(made)({"x": np.array([-2.0, 2.0])})["y"].tolist() == [-1, 2]


def test_what_is_refused(tmp_path: Path) -> None:
    runner = OnnxRunner(LINEAR)
    with pytest.raises(ArgumentError, match=r"the inputs are named z.*Try: x"):
        runner({"z": np.zeros((1, 3))})
    with pytest.raises(ArgumentError, match=r"'x' is dtypes\.int"):
        runner({"x": Tensor([[1, 2, 3]])})
    with pytest.raises(FileFormatError, match="'Nonsense' in opset 18 is not built"):
        OnnxRunner(model(node("Nonsense", "x", "y"), inputs=WORK, outputs=("y",)))
    lost = OnnxRunner(model(node("Relu", "lost", "y"), inputs={"x": [2]}, outputs=("y",)))
    with pytest.raises(FileFormatError, match="Relu reads 'lost', which nothing before it gives"):
        lost({"x": np.zeros(2)})
    (tmp_path / "x.onnx").write_bytes(b"nothing of the kind")
    with pytest.raises(FileFormatError, match="no ONNX model"):
        OnnxRunner(tmp_path / "x.onnx")
    (tmp_path / "x.onnx").write_bytes(b"")
    with pytest.raises(FileFormatError, match="no graph"):
        OnnxRunner(tmp_path / "x.onnx")


def stored(dims: list[int], name: str = "w") -> onnx.TensorProto:
    found = onnx.TensorProto(name=name, data_type=onnx.TensorProto.FLOAT, float_data=range(4))
    found.dims.extend(dims)
    return found


def sparse(dims: list[int], places: list[int], sizes: list[int]) -> onnx.SparseTensorProto:
    found = onnx.SparseTensorProto(values=stored([4]), dims=dims)
    found.indices.CopyFrom(onnx.TensorProto(name="places", data_type=onnx.TensorProto.INT64, int64_data=places))
    found.indices.dims.extend(sizes)
    return found


@pytest.mark.parametrize("dims", [[-2, -2], [-2, 2], [-1], [0, -1], [-1, 4]])
def test_negative_sizes_are_refused(dims: list[int]) -> None:
    made = model(node("Add", "x w", "y"), inputs={"x": [2, 2]}, outputs=("y",))
    made.graph.initializer.append(stored(dims))
    with pytest.raises(FileFormatError, match=re.escape(f"'w' has the shape {tuple(dims)}: a negative size")):
        OnnxRunner(made)
    inner = model(helper.make_node("Constant", [], ["y"], value=stored(dims)), inputs={}, outputs=("y",))
    with pytest.raises(FileFormatError, match="a negative size"):
        OnnxRunner(inner)
    with pytest.raises(ShapeError, match="negative size"):
        OnnxRunner(model(node("Expand", "x s", "y"), inputs={"x": [1, 1]}, outputs=("y",),
                         constants={"s": np.array(dims)}))({"x": np.ones((1, 1))})


@pytest.mark.parametrize("dims, places, sizes, said", [
    ([-2, -2], [0, 1, 2, 3], [4], "negative size"), ([2, 2], [0, 1, 2, -3], [4], "places outside"),
    ([2, 2], [0, 1, 2, 4], [4], "places outside"), ([2, 2], [0, 0, 0, 1, 1, 0, 1, -1], [4, 2], "places outside"),
    ([2, 2], [0, 1, 2], [3], "places outside"), ([2, 2], [0, 1, 2, 3], [-4], "negative size")])
def test_damaged_sparse_constants_are_refused(dims: list[int], places: list[int], sizes: list[int], said: str) -> None:
    made = model(node("Add", "x w", "y"), inputs={"x": [2, 2]}, outputs=("y",))
    made.graph.sparse_initializer.append(sparse([2, 2], [3, 2, 1, 0], [4]))
    assert OnnxRunner(made)({"x": np.zeros((2, 2))})["y"].tolist() == [[3, 2], [1, 0]]
    made.graph.sparse_initializer[0].CopyFrom(sparse(dims, places, sizes))
    with pytest.raises(FileFormatError, match=said):
        OnnxRunner(made)


def test_operators_are_named_as_the_standard_names_them() -> None:
    known = {(s.domain, s.name) for s in onnx.defs.get_all_schemas_with_history()}
    assert OPERATORS.keys() <= known


def test_scales_are_rounded_as_asked() -> None:
    """8-bit power-of-two scales against the library's own rounding."""
    from onnx.numpy_helper import to_float8e8m0

    x = np.array([0.0, 1e-45, 6e-39, 1.0, 1.25, 1.5, 1.75, -3.0, 3e38, np.inf, np.nan], np.float32)
    for mode in ("up", "down", "nearest"):
        cast_to = node("Cast", "x", "y", to=TensorProto.FLOAT8E8M0, round_mode=mode)
        back = node("Cast", "y", "z", to=TensorProto.FLOAT)
        run = OnnxRunner(model(cast_to, back, inputs={"x": [len(x)]}, outputs=("z",), opset=24))
        want = to_float8e8m0(x, True, mode).astype(np.float32)
        np.testing.assert_array_equal(run({"x": Tensor(x)})["z"].numpy(), want)


def test_numbers_of_labels_and_of_words() -> None:
    """LabelEncoder and TfIdfVectorizer of strings give numeric tensors on the device."""
    labels = helper.make_node("LabelEncoder", ["x"], ["y"], domain="ai.onnx.ml", keys_strings=["a", "b"],
                              values_floats=[1.0, 2.0], default_float=9.0)
    words = node("TfIdfVectorizer", "x", "z", mode="TFIDF", min_gram_length=1, max_gram_length=2, max_skip_count=0,
                 ngram_counts=[0, 2], ngram_indexes=[0, 1, 2], pool_strings=["a", "b", "a", "b"],
                 weights=[1.0, 2.0, 3.0])
    text = helper.make_tensor_value_info("x", TensorProto.STRING, [None])
    outputs = [helper.make_tensor_value_info(n, TensorProto.FLOAT, None) for n in "yz"]
    made = helper.make_model(helper.make_graph([labels, words], "made", [text], outputs), opset_imports=[
        helper.make_opsetid("", 18), helper.make_opsetid("ai.onnx.ml", 4)])
    found = OnnxRunner(made)({"x": np.array(["a", "b", "c", "a"], object)})
    assert found["y"].tolist() == [1.0, 2.0, 9.0, 1.0] and found["z"].tolist() == [2.0, 2.0, 3.0]
