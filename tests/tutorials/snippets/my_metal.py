import functools
from tinygrad import Device, Tensor
from tinygrad.device import Allocator, Compiled, Compiler, Program
class MyMetalAllocator(Allocator):
    def __init__(self, device): self.device = device
    def alloc(self, size): return bytearray(size)
    def copyin(self, dest, offset, src): dest[offset:offset+len(src)] = src
    def copyout(self, dest, src, offset): dest[:] = memoryview(src)[offset:offset+len(dest)]
class MyMetalCompiler(Compiler):
    def __init__(self, device): self.device = device
class MyMetalProgram(Program): pass

class MyMetalDevice(Compiled):
    def __init__(self, device:str):
        # 初始化设备，内存分配器，编译器，运行时等
        super().__init__(device, MyMetalAllocator(self), MyMetalCompiler(self),
                         functools.partial(MyMetalProgram, self))

Device.register("MYMETAL", MyMetalDevice)
a = Tensor([1, 2], device="MYMETAL")
print(a.numpy(), a.device)
try: print((a + 1).numpy())
except RuntimeError as error: print(error)
