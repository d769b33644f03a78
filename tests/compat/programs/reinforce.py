"""Policy gradients: sampled actions, discounted rewards, an entropy term."""
from tinygrad import Tensor, TinyJit, nn


class Policy:
    def __init__(self):
        self.l1, self.l2 = nn.Linear(4, 16), nn.Linear(16, 3)

    def __call__(self, obs):
        return self.l2(self.l1(obs).tanh()).log_softmax()


Tensor.manual_seed(28)
policy = Policy()
opt = nn.optim.Adam(nn.state.get_parameters(policy), lr=0.02)
best = Tensor([0, 1, 2, 1])
observations = Tensor.eye(4)


@TinyJit
def act(obs):
    return policy(obs).exp().multinomial().squeeze(1).realize()


@TinyJit
@Tensor.train()
def learn(obs, actions, rewards):
    opt.zero_grad()
    logp = policy(obs)
    chosen = logp.gather(1, actions.unsqueeze(1)).squeeze(1)
    entropy = -(logp.exp() * logp).sum(1).mean()
    loss = -(chosen * (rewards - rewards.mean())).mean() - 0.01 * entropy
    return loss.backward().realize(*opt.schedule_step())


obs = observations.repeat((8, 1)).contiguous().realize()
for _ in range(40):
    actions = act(obs)
    rewards = (actions == best.repeat(8)).float().realize()
    learn(obs, actions, rewards)
assert (policy(observations).argmax(1) == best).mean().item() >= 0.75
