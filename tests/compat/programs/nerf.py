"""Positions as sines, densities along rays, colours composed by what lies in front."""
import math

from tinygrad import Tensor, nn


def encode(x, bands=3):
    parts = [x]
    for i in range(bands):
        parts += [(x * (2**i * math.pi)).sin(), (x * (2**i * math.pi)).cos()]
    return Tensor.cat(*parts, dim=-1)


Tensor.manual_seed(44)
net = [nn.Linear(14, 24), Tensor.relu, nn.Linear(24, 4)]
origins, depths = Tensor.rand(16, 1, 2).realize(), Tensor.linspace(0, 1, 8).reshape(1, 8, 1)
directions = Tensor.randn(16, 1, 2).normalize(dim=-1).realize()
colours = origins.squeeze(1).pad((0, 1)).realize()


def render():
    raw = encode(origins + directions * depths).sequential(net)
    alpha = 1 - (raw[..., 3].softplus() * -0.5).exp()
    passed = (1 - alpha + 1e-6).log().cumsum(1).exp()
    weights = alpha * passed.pad(((0, 0), (1, 0)), value=1.0)[:, :-1]
    return (weights.unsqueeze(-1) * raw[..., :3].sigmoid()).sum(1)


opt = nn.optim.Adam(nn.state.get_parameters(net), lr=0.02)
losses = []
with Tensor.train():
    for _ in range(15):
        opt.zero_grad()
        losses.append((render() - colours).square().mean().backward().item())
        opt.step()
assert losses[-1] < 0.8 * losses[0], losses
