"""Least squares by gradient(), without an optimizer."""
from tinygrad import Tensor

Tensor.manual_seed(0)
x = Tensor.randn(64, 3).realize()
y = (x @ Tensor([[1.0], [-2.0], [0.5]]) + 3).realize()
w, b = Tensor.zeros(3, 1).contiguous(), Tensor.zeros(1).contiguous()
for _ in range(60):
    loss = ((x @ w + b) - y).square().mean()
    dw, db = loss.gradient(w, b)
    w.assign(w - 0.1 * dw)
    b.assign(b - 0.1 * db)
    Tensor.realize(w, b)
assert abs(b.item() - 3) < 0.1 and abs(w.tolist()[1][0] + 2) < 0.1
