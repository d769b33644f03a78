"""States by name, to a file and back, through every way in."""
import tempfile
from pathlib import Path

from tinygrad import Tensor, dtypes, nn
from tinygrad.helpers import get_child
from tinygrad.nn.state import (
    get_parameters,
    get_state_dict,
    load_state_dict,
    safe_load,
    safe_load_metadata,
    safe_save,
    torch_load,
)


class Model:
    def __init__(self):
        self.blocks = [{"fc": nn.Linear(3, 3), "scale": Tensor.ones(3)} for _ in range(2)]
        self.head = nn.Linear(3, 1)

    def __call__(self, x):
        for b in self.blocks:
            x = b["fc"](x).relu() * b["scale"]
        return self.head(x)


Tensor.manual_seed(35)
a, b = Model(), Model()
state = get_state_dict(a)
assert sorted(state)[:2] == ["blocks.0.fc.bias", "blocks.0.fc.weight"] and len(get_parameters(a)) == 8
assert get_child(a, "blocks.1.fc.weight") is state["blocks.1.fc.weight"]
with tempfile.TemporaryDirectory() as folder:
    fn = f"{folder}/model.safetensors"
    safe_save(state, fn, metadata={"epoch": "3"})
    assert load_state_dict(b, safe_load(fn), strict=True, verbose=False)
    assert b(Tensor.ones(1, 3)).allclose(a(Tensor.ones(1, 3))).item()
    t, start, metadata = safe_load_metadata(Tensor(Path(fn)))
    entry = metadata["head.bias"]["data_offsets"]
    assert t[start + entry[0]:start + entry[1]].bitcast(dtypes.float32).to("CPU").allclose(a.head.bias).item()
    assert metadata["__metadata__"]["epoch"] == "3"
    again = safe_load(Tensor(Path(fn)))
    load_state_dict(b, {k: v.to(None) * 0 for k, v in again.items()}, verbose=False, consume=False, realize=True)
    assert b.head.weight.abs().sum().item() == 0
try:
    load_state_dict(b, {"head.bias": Tensor([1.0])}, strict=True)
    raise AssertionError("a partial state was loaded")
except (KeyError, ValueError):
    load_state_dict(b, {"head.bias": Tensor([1.0])}, strict=False, verbose=False)
assert b.head.bias.tolist() == [1.0] and callable(torch_load)
