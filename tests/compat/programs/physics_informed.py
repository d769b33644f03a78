"""A network for u'' = -u: derivatives of derivatives inside the loss."""
from tinygrad import Tensor, nn

Tensor.manual_seed(34)
net = [nn.Linear(1, 12), Tensor.tanh, nn.Linear(12, 12), Tensor.tanh, nn.Linear(12, 1)]
t = Tensor.linspace(0, 2, 16).reshape(16, 1).contiguous().realize()
zero = Tensor.zeros(1, 1).contiguous()
opt = nn.optim.Adam(nn.state.get_parameters(net), lr=0.02)
losses = []
with Tensor.train():
    for _ in range(12):
        opt.zero_grad()
        u = t.sequential(net)
        du = u.sum().gradient(t)[0]
        ddu = du.sum().gradient(t)[0]
        start = zero.sequential(net)
        slope = start.sum().gradient(zero)[0]
        loss = (ddu + u).square().mean() + start.square().sum() + (slope - 1).square().sum()
        loss.backward()
        opt.step()
        losses.append(loss.item())
assert losses[-1] < 0.8 * losses[0], losses
