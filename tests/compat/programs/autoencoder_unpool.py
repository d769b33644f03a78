"""Pooling that remembers its places, and unpooling that puts values back there."""
from tinygrad import Tensor, function, nn

Tensor.manual_seed(45)
enc, dec = nn.Conv2d(1, 4, 3, padding=1), nn.ConvTranspose2d(4, 1, 3, padding=1)


@function
def forward(x):
    values, places = enc(x).relu().max_pool2d(return_indices=True)
    return dec(values.max_unpool2d(places, output_size=x.shape[-2:]))


x = Tensor.rand(4, 1, 8, 8).realize()
opt = nn.optim.Adam(nn.state.get_parameters([enc, dec]), lr=0.02)
losses = []
with Tensor.train():
    for _ in range(15):
        opt.zero_grad()
        losses.append((forward(x) - x).square().mean().backward().item())
        opt.step()
assert losses[-1] < 0.7 * losses[0], losses
