"""Inverted bottlenecks: depthwise convolutions, squeeze and excitation, swish."""
from tinygrad import Tensor, nn


class MBConvBlock:
    def __init__(self, cin, cout, expand=2, stride=1):
        mid = cin * expand
        self.expand = Tensor.glorot_uniform(mid, cin, 1, 1)
        self.bn0, self.bn1, self.bn2 = nn.BatchNorm2d(mid), nn.BatchNorm2d(mid), nn.BatchNorm2d(cout)
        self.stride, self.depthwise = stride, Tensor.glorot_uniform(mid, 1, 3, 3)
        self.se_reduce, self.se_expand = nn.Conv2d(mid, 2, 1), nn.Conv2d(2, mid, 1)
        self.project = Tensor.glorot_uniform(cout, mid, 1, 1)

    def __call__(self, inputs):
        x = self.bn0(inputs.conv2d(self.expand)).swish()
        x = x.conv2d(self.depthwise, padding=1, stride=self.stride, groups=self.depthwise.shape[0])
        x = self.bn1(x).swish()
        squeezed = x.avg_pool2d(kernel_size=x.shape[2:4])
        x = x.mul(self.se_expand(self.se_reduce(squeezed).swish()).sigmoid())
        x = self.bn2(x.conv2d(self.project))
        return x.add(inputs) if x.shape == inputs.shape else x


Tensor.manual_seed(23)
x, y = Tensor.randn(6, 4, 8, 8).realize(), Tensor([0, 1, 2, 0, 1, 2])
net = [MBConvBlock(4, 4), MBConvBlock(4, 6, stride=2), lambda x: x.mean((2, 3)), nn.Linear(6, 3)]
opt = nn.optim.Adam(nn.state.get_parameters(net), lr=0.02)
losses = []
with Tensor.train():
    for _ in range(4):
        opt.zero_grad()
        loss = x.sequential(net).sparse_categorical_crossentropy(y).backward()
        opt.step()
        losses.append(loss.item())
assert losses[-1] < losses[0], losses
assert x.sequential(net).shape == (6, 3)
