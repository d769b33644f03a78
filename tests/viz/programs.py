"""Programs that tests trace, run as a user runs them."""
from __future__ import annotations

from pathlib import Path

from tests.golden.running import run

FOUR = '''import numpy as np
from tinsmith import Tensor, TinyJit, nn

print(Tensor([1, 2]).dot(Tensor([3, 4])).numpy())
print(Tensor([1, 2, 3, 4]).var().numpy())
a, b = Tensor(np.ones((64, 96), np.float32)), Tensor(np.ones((96, 48), np.float32))
print((a @ b).numpy().sum())


class Model:
    def __init__(self):
        self.conv, self.linear = nn.Conv2d(1, 4, 5), nn.Linear(4 * 12 * 12, 10)

    def __call__(self, x):
        x = self.conv(x).relu().max_pool2d()
        return self.linear(x.flatten(1))


model = Model()
optim = nn.optim.SGD(nn.state.get_parameters(model), lr=0.01)
X, Y = Tensor(np.ones((8, 1, 28, 28), np.float32)), Tensor(np.arange(8) % 10)


@TinyJit
def step():
    with Tensor.train():
        optim.zero_grad()
        loss = model(X).sparse_categorical_crossentropy(Y).backward()
        optim.step()
        return loss.realize()


for _ in range(4):
    loss = step()
print(loss.item() > 0)
'''

DEEP = '''from tinsmith import Tensor


class Block:
    def __init__(self, n):
        self.a, self.b = Tensor.ones(n, n).contiguous().realize(), Tensor.ones(n, n).contiguous().realize()

    def __call__(self, x):
        h = x @ self.a
        h = h.gelu()
        h = h @ self.b
        return x + h.layernorm()


x = Tensor.ones(4, 16).contiguous().realize()
for block in [Block(16) for _ in range(COUNT)]:
    x = block(x)
x.realize()
'''


def traced(text: str, folder: Path, **settings: str) -> Path:
    """Return the trace of a program run in ``folder``."""
    (folder / "program.py").write_text(text)
    done = run(["program.py"], folder, VIZ="2", POISON="0", **settings)
    assert done.returncode == 0, done.stderr
    assert "VIZ: the trace is program.trace.json" in done.stdout
    return folder / "program.trace.json"
