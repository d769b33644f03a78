"""A classifier of points, trained as the quickstart shows."""
from tinygrad import Tensor, nn


class Net:
    def __init__(self):
        self.l1, self.l2 = nn.Linear(2, 16), nn.Linear(16, 2, bias=False)

    def __call__(self, x):
        return self.l2(self.l1(x).leaky_relu())


Tensor.manual_seed(1)
points = Tensor.randn(128, 2).realize()
labels = (points[:, 0] * points[:, 1] > 0).cast("int32").realize()
net = Net()
opt = nn.optim.SGD([net.l1.weight, net.l1.bias, net.l2.weight], lr=0.5)
losses = []
with Tensor.train():
    for _ in range(60):
        opt.zero_grad()
        loss = net(points).sparse_categorical_crossentropy(labels).backward()
        opt.step()
        losses.append(loss.item())
accuracy = (net(points).argmax(axis=-1) == labels).mean().item()
assert losses[-1] < 0.6 * losses[0] and accuracy > 0.8, (losses[0], losses[-1], accuracy)
