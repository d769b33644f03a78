"""A small convolutional network with a captured training step."""
from tinygrad import Context, Tensor, TinyJit, nn


class Model:
    def __init__(self):
        self.layers = [
            nn.Conv2d(1, 8, 3), Tensor.relu, nn.BatchNorm(8), Tensor.max_pool2d,
            lambda x: x.flatten(1), nn.Linear(8 * 5 * 5, 4)]

    def __call__(self, x):
        return x.sequential(self.layers)


Tensor.manual_seed(2)
images, labels = Tensor.randn(32, 1, 12, 12).realize(), Tensor.randint(32, high=4).realize()
model = Model()
opt = nn.optim.Adam(nn.state.get_parameters(model), lr=0.01)


@TinyJit
@Context(TRAINING=1)
def train_step():
    opt.zero_grad()
    samples = Tensor.randint(16, high=images.shape[0])
    loss = model(images[samples]).sparse_categorical_crossentropy(labels[samples]).backward()
    return loss.realize(*opt.schedule_step())


@TinyJit
def test_acc():
    return (model(images).argmax(axis=1) == labels).mean() * 100


losses = [train_step().item() for _ in range(40)]
assert sum(losses[-5:]) < 0.3 * sum(losses[:5]), losses
assert test_acc().item() > 60
