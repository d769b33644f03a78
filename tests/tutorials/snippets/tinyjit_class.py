from typing import List, cast
from tinygrad import Context, Tensor, getenv
from tinygrad.device import Buffer
from tinygrad.engine.jit import CacheCollector
from tinygrad.helpers import DEBUG, GRAPH
from tinygrad.nn.state import get_parameters
var_vals, kwargs = {}, {}  # the excerpt reads them and does not say where they come from

class TinyJit:
  def __call__(self, *args):
    if self.cnt >= 2:
      # jit exec
      for ji in self.jit_cache:
        ji.prg(cast(List[Buffer], ji.rawbufs), var_vals, wait=DEBUG>=2, jit=True)
    elif self.cnt == 1:
      # jit capture
      CacheCollector.start(var_vals)
      with Context(GRAPH=getenv("JITGRAPH", GRAPH.value)):
        self.ret = self.fxn(*args, **kwargs)
        Tensor.corealize(get_parameters(self.ret))
      self.jit_cache = CacheCollector.finish()
    elif self.cnt == 0:
      # jit ignore
      self.ret = self.fxn(*args, **kwargs)
      Tensor.corealize(get_parameters(self.ret))
    self.cnt += 1

# What the excerpt leaves out: how it is made, and a function.
calls, x, jitted = [], Tensor([1, 2]).realize(), TinyJit()
jitted.cnt, jitted.fxn = 0, lambda: (calls.append(1), x.dot(Tensor([3, 4]).realize()))[1]
for _ in range(4): jitted()
print(jitted.ret.item(), len(calls), len(jitted.jit_cache))
