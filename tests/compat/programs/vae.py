"""A variational autoencoder: the trick of reparametrization, and a KL term."""
from tinygrad import Tensor, nn


class VAE:
    def __init__(self):
        self.enc, self.mu, self.logvar = nn.Linear(16, 12), nn.Linear(12, 2), nn.Linear(12, 2)
        self.dec = [nn.Linear(2, 12), Tensor.tanh, nn.Linear(12, 16)]

    def __call__(self, x):
        h = self.enc(x).tanh()
        mu, logvar = self.mu(h), self.logvar(h)
        z = mu + (logvar * 0.5).exp() * Tensor.randn(*mu.shape)
        return z.sequential(self.dec), mu, logvar


Tensor.manual_seed(6)
x = (Tensor.rand(64, 16) > 0.5).float().realize()
vae = VAE()
opt = nn.optim.Adam(nn.state.get_parameters(vae), lr=0.02)
losses = []
with Tensor.train():
    for _ in range(25):
        opt.zero_grad()
        logits, mu, logvar = vae(x)
        kl = -0.5 * (1 + logvar - mu.square() - logvar.exp()).sum(1).mean()
        loss = logits.binary_crossentropy_logits(x, reduction="sum") / 64 + 0.1 * kl
        loss.backward()
        opt.step()
        losses.append(loss.item())
assert losses[-1] < losses[0]
