"""ConvNeXt's block: large depthwise kernels, a norm over channels, a scale per layer."""
from tinygrad import Tensor, nn


class Block:
    def __init__(self, dim):
        self.dwconv, self.norm = nn.Conv2d(dim, dim, kernel_size=5, padding=2, groups=dim), nn.LayerNorm(dim, eps=1e-6)
        self.pwconv1, self.pwconv2 = nn.Linear(dim, 4 * dim), nn.Linear(4 * dim, dim)
        self.gamma = Tensor.ones(dim) * 0.5

    def __call__(self, x):
        return x + x.sequential([
            self.dwconv, lambda x: x.permute(0, 2, 3, 1), self.norm, self.pwconv1, Tensor.gelu, self.pwconv2,
            lambda x: (self.gamma * x).permute(0, 3, 1, 2)])


Tensor.manual_seed(24)
net = [nn.Conv2d(3, 6, 2, stride=2), nn.LayerNorm2d(6), Block(6), Block(6), lambda x: x.mean([-2, -1]), nn.LayerNorm(6),
       nn.Linear(6, 2)]
x, y = Tensor.randn(8, 3, 12, 12).realize(), Tensor([0, 1] * 4)
opt = nn.optim.AdamW(nn.state.get_parameters(net), lr=0.02, weight_decay=0.05)
losses = []
with Tensor.train():
    for _ in range(8):
        opt.zero_grad()
        loss = x.sequential(net).cross_entropy(y, label_smoothing=0.1)
        loss.backward()
        opt.step()
        losses.append(loss.item())
assert losses[-1] < losses[0], losses
