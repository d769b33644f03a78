from tinygrad import Tensor
from tinygrad.engine.commandqueue import CommandQueue
from tinygrad.engine.schedule import create_schedule
a = Tensor([1,2])
b = Tensor([3,4])
schedule = create_schedule([a.dot(b).lazydata])
q = CommandQueue(schedule)
print(list(q.q), [type(item).__name__ for item in q.q["CPU"]])
print(q()[0].numpy())
