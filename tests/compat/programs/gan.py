"""A generator and a discriminator, each with an optimizer of its own."""
from tinygrad import Tensor, nn
from tinygrad.nn.optim import Adam


class Generator:
    def __init__(self):
        self.l1, self.l2 = nn.Linear(4, 16), nn.Linear(16, 2)

    def forward(self, z):
        return self.l2(self.l1(z).leaky_relu(0.2))


class Discriminator:
    def __init__(self):
        self.l1, self.l2 = nn.Linear(2, 16), nn.Linear(16, 2)

    def forward(self, x):
        return self.l2(self.l1(x).leaky_relu(0.2).dropout(0.3)).log_softmax()


def train_discriminator(opt, real, fake):
    opt.zero_grad()
    ones, zeros = Tensor([[0.0, 1.0]]).expand(32, 2), Tensor([[1.0, 0.0]]).expand(32, 2)
    loss = -(disc.forward(real) * ones).mean() - (disc.forward(fake.detach()) * zeros).mean()
    loss.backward()
    opt.step()
    return loss.numpy()


def train_generator(opt, fake):
    opt.zero_grad()
    loss = -(disc.forward(fake)[:, 1]).mean()
    loss.backward()
    opt.step()
    return loss.numpy()


Tensor.manual_seed(5)
gen, disc = Generator(), Discriminator()
opt_g, opt_d = Adam(nn.state.get_parameters(gen), lr=0.01, b1=0.5), Adam(nn.state.get_parameters(disc), lr=0.01, b1=0.5)
start = gen.forward(Tensor.randn(256, 4)).mean(0).numpy()
with Tensor.train():
    for _ in range(30):
        real = Tensor.randn(32, 2) * 0.1 + 2
        train_discriminator(opt_d, real, gen.forward(Tensor.randn(32, 4)))
        train_generator(opt_g, gen.forward(Tensor.randn(32, 4)))
end = gen.forward(Tensor.randn(256, 4)).mean(0).numpy()
assert ((end - 2) ** 2).sum() < ((start - 2) ** 2).sum(), (start, end)
