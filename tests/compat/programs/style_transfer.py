"""An image is what is optimized: Gram matrices of features that stay as they are."""
from tinygrad import Tensor, nn

Tensor.manual_seed(33)
features = [nn.Conv2d(3, 6, 3, padding=1), Tensor.relu, nn.Conv2d(6, 6, 3, stride=2, padding=1), Tensor.relu]
for p in nn.state.get_parameters(features):
    p.is_param_(False)


def gram(x):
    f = x.sequential(features).flatten(2)
    return f @ f.transpose(1, 2) / f.shape[-1]


style, image = Tensor.rand(1, 3, 12, 12).realize(), Tensor.rand(1, 3, 12, 12).realize()
wanted = gram(style).detach().realize()
opt = nn.optim.Adam([image], lr=0.05)
losses = []
with Tensor.train():
    for _ in range(15):
        opt.zero_grad()
        loss = (gram(image) - wanted).square().sum() + 1e-4 * (image[..., 1:] - image[..., :-1]).abs().sum()
        loss.backward()
        opt.step()
        losses.append(loss.item())
assert losses[-1] < 0.6 * losses[0] and all(p.grad is None for p in nn.state.get_parameters(features))
