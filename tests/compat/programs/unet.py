"""A U-Net for segmentation: transposed convolutions, skips, binary cross entropy and the Dice score."""
from tinygrad import Tensor, nn


def double(cin, cout):
    return [nn.Conv2d(cin, cout, 3, padding=1), nn.GroupNorm(2, cout), Tensor.relu,
            nn.Conv2d(cout, cout, 3, padding=1), nn.InstanceNorm(cout), Tensor.leaky_relu]


class UNet:
    def __init__(self):
        self.down1, self.down2, self.mid = double(1, 4), double(4, 8), double(8, 8)
        self.up = nn.ConvTranspose2d(8, 8, 2, stride=2)
        self.up1 = double(16, 8)
        self.out = nn.Conv2d(8, 1, 1)

    def __call__(self, x):
        a = x.sequential(self.down1).max_pool2d()
        b = a.sequential(self.down2)
        c = b.max_pool2d((2, 2)).sequential(self.mid)
        d = self.up(c).cat(b, dim=1).sequential(self.up1)
        return self.out(d).interpolate((16, 16), mode="nearest")


Tensor.manual_seed(4)
x = Tensor.randn(2, 1, 16, 16).realize()
mask = (x.avg_pool2d((4, 4)).interpolate((16, 16), mode="nearest") > 0).float().realize()
net = UNet()
opt = nn.optim.AdamW(nn.state.get_parameters(net), lr=0.02)
losses = []
for _ in range(4):
    with Tensor.train():
        opt.zero_grad()
        logits = net(x)
        p = logits.sigmoid()
        dice = 1 - 2 * (p * mask).sum() / (p.sum() + mask.sum())
        loss = (logits.binary_crossentropy_logits(mask) + dice).backward()
        opt.step()
        losses.append(loss.item())
assert losses[-1] < losses[0], losses
