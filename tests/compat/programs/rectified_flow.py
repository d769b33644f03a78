"""Flow matching: velocities between noise and data, then Euler steps."""
from tinygrad import Tensor, nn

Tensor.manual_seed(16)
net = [nn.Linear(3, 24), Tensor.silu, nn.Linear(24, 24), Tensor.silu, nn.Linear(24, 2)]
opt = nn.optim.Adam(nn.state.get_parameters(net), lr=0.01)
target = Tensor([2.0, -1.0])
losses = []
with Tensor.train():
    for _ in range(30):
        opt.zero_grad()
        x, z, t = Tensor.randn(64, 2) * 0.1 + target, Tensor.randn(64, 2), Tensor.randn(64, 1).sigmoid()
        v = ((1 - t) * x + t * z).cat(t, dim=1).sequential(net)
        loss = (v - (z - x)).square().mean()
        loss.backward()
        opt.step()
        losses.append(loss.item())
assert sum(losses[-5:]) < 0.7 * sum(losses[:5]), losses
z = Tensor.randn(32, 2)
for i in range(8, 0, -1):
    z = (z - z.cat(Tensor.full((32, 1), i / 8), dim=1).sequential(net) / 8).realize()
assert abs(z.mean(0).numpy() - target.numpy()).max() < 1.0
