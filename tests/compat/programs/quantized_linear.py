"""Weights as bytes with a scale per row, and a layer that multiplies by them."""
from tinygrad import Tensor, dtypes, nn


class QuantizedLinear:
    def __init__(self, layer):
        self.scale = layer.weight.abs().max(axis=1, keepdim=True) / 127.0
        self.weight = (layer.weight / self.scale).round().clamp(-128, 127).cast(dtypes.int8)
        self.bias = layer.bias

    def __call__(self, x):
        return x.dot(self.weight.cast(self.scale.dtype).transpose() * self.scale.transpose()) + self.bias


Tensor.manual_seed(41)
layer, x = nn.Linear(16, 8), Tensor.randn(4, 16).realize()
quantized = QuantizedLinear(layer)
assert quantized.weight.dtype == dtypes.int8 and quantized.weight.nbytes() * 4 == layer.weight.nbytes()
assert (quantized(x) - layer(x)).abs().max().item() < 0.05
head = nn.Linear(8, 2)
opt = nn.optim.SGD(nn.state.get_parameters(head), lr=0.5)
labels, losses = Tensor([0, 1, 0, 1]), []
with Tensor.train():
    for _ in range(10):
        opt.zero_grad()
        losses.append(head(quantized(x).detach()).cross_entropy(labels).backward().item())
        opt.step()
assert losses[-1] < losses[0]
