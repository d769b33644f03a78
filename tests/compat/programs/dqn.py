"""Q-learning with a second network whose weights follow."""
from tinygrad import Tensor, nn
from tinygrad.nn.state import get_parameters, get_state_dict, load_state_dict


class Q:
    def __init__(self):
        self.l1, self.l2 = nn.Linear(5, 16), nn.Linear(16, 2)

    def __call__(self, x):
        return self.l2(self.l1(x).relu())


Tensor.manual_seed(29)
q, target = Q(), Q()
loaded = load_state_dict(target, get_state_dict(q), verbose=False)
assert len(loaded) == 4 and target.l1.weight.allclose(q.l1.weight).item()
opt = nn.optim.AdamW(get_parameters(q), lr=0.02)
place = Tensor.randint(64, high=5).realize()
action = Tensor.randint(64, high=2).realize()
after = (place + action * 2 - 1).clip(0, 4)
reward = (after == 4).float()
before, later = place.one_hot(5).float().realize(), after.one_hot(5).float().realize()
losses = []
with Tensor.train():
    for _ in range(30):
        aim = (reward + 0.9 * target(later).max(1)).detach()
        opt.zero_grad()
        mine = q(before).gather(-1, action.unsqueeze(-1)).squeeze(-1)
        loss = (mine - aim).abs().square().mean()
        loss.backward()
        opt.step()
        losses.append(loss.item())
        for a, b in zip(get_parameters(target), get_parameters(q)):
            a.assign(a.detach() * 0.8 + b.detach() * 0.2).realize()
assert q(Tensor.eye(5)).argmax(1).tolist()[1:] == [1, 1, 1, 1], q(Tensor.eye(5)).tolist()
