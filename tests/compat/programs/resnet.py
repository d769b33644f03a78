"""Residual blocks with batch normalization; the statistics move in training and rest in evaluation."""
from tinygrad import Tensor, nn


class BasicBlock:
    def __init__(self, cin, cout, stride=1):
        self.conv1 = nn.Conv2d(cin, cout, kernel_size=3, stride=stride, padding=1, bias=False)
        self.bn1 = nn.BatchNorm2d(cout)
        self.conv2 = nn.Conv2d(cout, cout, kernel_size=3, padding=1, bias=False)
        self.bn2 = nn.BatchNorm2d(cout)
        self.downsample = []
        if stride != 1 or cin != cout:
            self.downsample = [nn.Conv2d(cin, cout, kernel_size=1, stride=stride, bias=False), nn.BatchNorm2d(cout)]

    def __call__(self, x):
        out = self.bn1(self.conv1(x)).relu()
        out = self.bn2(self.conv2(out))
        return (out + x.sequential(self.downsample)).relu()


class ResNet:
    def __init__(self):
        self.stem = nn.Conv2d(3, 4, 3, padding=1)
        self.blocks = [BasicBlock(4, 4), BasicBlock(4, 8, 2)]
        self.fc = nn.Linear(8, 3)

    def __call__(self, x):
        return self.fc(self.stem(x).sequential(self.blocks).mean([2, 3]))


Tensor.manual_seed(3)
x, y = Tensor.randn(12, 3, 8, 8).realize(), Tensor.arange(12) % 3
net = ResNet()
state = nn.state.get_state_dict(net)
assert "blocks.1.downsample.0.weight" in state and "blocks.0.bn1.running_mean" in state
opt = nn.optim.SGD(nn.state.get_parameters(net), lr=0.05, momentum=0.9, weight_decay=1e-4, nesterov=True)
losses = []
with Tensor.train():
    for _ in range(6):
        opt.zero_grad()
        loss = net(x).cross_entropy(y)
        loss.backward()
        opt.step()
        losses.append(loss.item())
assert losses[-1] < 0.9 * losses[0], losses
assert abs(net.blocks[0].bn1.running_mean.numpy()).sum() > 0
assert net(x).shape == (12, 3)
