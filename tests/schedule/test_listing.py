"""A schedule is a list of items, each of which prints one line."""
from __future__ import annotations

from collections.abc import Sequence

import pytest

from tinsmith import Context, OptOps, Tensor, TinyJit, Variable
from tinsmith.core.terminal import WIDTH
from tinsmith.nn import Linear
from tinsmith.runtime.command_queue import CommandQueue


def test_the_dot_product() -> None:
    with Context(NOOPT=0):
        schedule = Tensor([1, 2]).dot(Tensor([3, 4])).schedule()
    assert isinstance(schedule, Sequence) and len(schedule) == 3
    here = "test_listing.py:16"
    lines = [f"CPU copy 8, CPU <- NPY; 1 int(2,) from 0 int(2,); reason: copy; ({here})",
             f"CPU copy 8, CPU <- NPY; 3 int(2,) from 2 int(2,); reason: copy; ({here})",
             f"CPU r_2; opts UNROLL(0); 4 int(1,) from 1 int(2,), 3 int(2,); reason: output; dot ({here})"]
    assert str(schedule).splitlines() == lines and [repr(item) for item in schedule] == lines
    assert str(schedule[:2]) == f"[{lines[0]}, {lines[1]}]" and repr(schedule[-1]) == lines[-1]


class _Model:
    def __init__(self) -> None:
        self.hidden = Linear(4, 3)

    def __call__(self, x: Tensor) -> Tensor:
        return self.hidden(x).relu()


def test_lines_name_the_layers_of_a_model() -> None:
    model, x = _Model(), Tensor.ones(2, 4).contiguous().realize()
    item = model(x).schedule()[-1]
    assert "hidden Linear" in item.layers and f"; {item.layers}; " in repr(item)
    assert Tensor([1, 2]).sum().schedule()[-1].layers == ""


def test_an_item_has_what_its_line_says() -> None:
    with Context(NOOPT=0):
        *_, item = Tensor([[1.0, 2.0], [3.0, 4.0]]).sum(0).schedule()
    assert (item.device, item.name, item.reason) == ("CPU", "r_2_2", "output")
    assert [o.op for o in item.opts] and isinstance(item.opts[0].op, OptOps)
    assert [str(m) for m in (*item.written, *item.read)] == ["2 float(1, 2)", "1 float(2, 2)"]
    tree = item.tree().splitlines()
    assert [" ".join(line.split()[1:3]) for line in tree if "━" in line] == ["━┳ STORE", "┗━┳ SUM", "┗━━ LOAD"]
    with pytest.raises(IndexError):
        Tensor([1, 2]).sum().schedule()[5]


@pytest.mark.parametrize("name, said", [
    ("ast", r"Try: \.sink"), ("bufs", r"\.written and \.read"), ("inputs", r"\.read"), ("outputs", r"\.written"),
    ("metadata", r"\.origin"), ("prg", r"\.step\.program"), ("var_vals", "schedule_with_vars"),
    ("reasn", "did you mean ScheduledItem.reason"), ("quux", "one of device, layers, name, opts")])
def test_an_item_says_what_it_has_instead(name: str, said: str) -> None:
    item = Tensor([1, 2]).sum().schedule()[-1]
    with pytest.raises(AttributeError, match=said):
        getattr(item, name)
    assert not hasattr(item, "__array__")


def test_nothing_to_compute() -> None:
    schedule = Tensor([1]).realize().schedule()
    assert len(schedule) == 0 and list(schedule) == [] and "nothing to compute" in str(schedule)


def test_lines_stay_lines() -> None:
    """Gradients, random numbers and symbolic sizes print one line each, of at most 120 columns."""
    layer, x = Linear(32, 16), Tensor.rand(8, 32)
    loss = (layer(x).relu().softmax() - 1).var()
    loss.backward()
    part = Tensor.ones(8, 4).contiguous().realize()[: Variable("rows", 1, 8).bind(3)].sum(0)
    for schedule in (layer.weight.grad.schedule(loss, layer.bias.grad), part.schedule()):
        for item in schedule:
            assert all(len(row) <= WIDTH for row in item.tree().splitlines())
            line = repr(item)
            assert "\n" not in line and len(line) <= WIDTH and "reason: " in line and "test_listing.py:" in line
            assert line.startswith(f"{item.device} {item.name}; ") and item.tree()


def test_captured_programs_and_commands_print_a_line_each() -> None:
    step = TinyJit(lambda x: ((x + 1).sum().contiguous() + x.max()).realize())
    single = TinyJit(lambda x: (x + 1).realize())
    for _ in range(2):
        step(Tensor([1.0, 2.0]).realize())
        single(Tensor([1.0, 2.0]).realize())
    (item,) = step.jit_cache
    assert repr(item) == f"{len(item.compiled)} steps: {', '.join(f'CPU {i.name}' for i in item.compiled)}"
    assert repr(single.jit_cache) == f"[{single.jit_cache[0].compiled[0]!r}]" and len(repr(item)) <= 120
    queue = CommandQueue((Tensor([1, 2], device="CPU:1").realize().to("CPU") + 1).schedule())
    assert repr(queue.q) == ("{'CPU': [WAIT   0 of CPU copies, KERNEL E_2], "
                             "'CPU copies': [COPY   8, CPU <- CPU:1, SYNC   0]}")
