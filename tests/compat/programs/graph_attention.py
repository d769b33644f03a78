"""Attention along the edges of a graph: scores of both ends, a mask, messages added up by scatter."""
from tinygrad import Tensor, nn

Tensor.manual_seed(27)
nodes, dim = 8, 6
edges = Tensor([[i, (i + d) % nodes] for i in range(nodes) for d in (0, 1, 3)])
source, target = edges[:, 0], edges[:, 1]
x = Tensor.randn(nodes, dim).realize()
w, att = nn.Linear(dim, dim, bias=False), Tensor.glorot_uniform(2 * dim, 1)


def layer(x):
    h = w(x)
    score = (h[source].cat(h[target], dim=1) @ att).leaky_relu(0.2).squeeze(1)
    weight = (score - score.max().detach()).exp()
    total = Tensor.zeros(nodes).scatter_reduce(0, target, weight, reduce="sum")
    share = (weight / total[target]).unsqueeze(1)
    index = target.unsqueeze(1).expand(-1, dim)
    return Tensor.zeros(nodes, dim).scatter_reduce(0, index, share * h[source], reduce="sum"), share


out, share = layer(x)
sums = Tensor.zeros(nodes).scatter_reduce(0, target, share.squeeze(1), reduce="sum")
assert (sums - 1).abs().max().item() < 1e-5
opt = nn.optim.SGD([w.weight, att], lr=0.3)
losses = []
with Tensor.train():
    for _ in range(10):
        opt.zero_grad()
        loss = (layer(x)[0] - x.roll(1, 0)).square().mean()
        loss.backward()
        opt.step()
        losses.append(loss.item())
assert losses[-1] < losses[0], losses
