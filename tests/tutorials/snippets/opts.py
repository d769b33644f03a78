from tinsmith import Opt, OptOps, Tensor, with_opts
a, b = Tensor.ones(4, 4).contiguous().realize(), Tensor.ones(4, 4).contiguous().realize()
print(with_opts(a + b, [Opt(OptOps.UPCAST, 0, 8)], device="CUDA").axes)
print("gidx0*8" in with_opts(a + b, [Opt(OptOps.UPCAST, 0, 8)], device="CUDA").source)
print("__shfl" in with_opts(a.sum(1), [Opt(OptOps.GROUP, 1, 2)], device="CUDA").source)
try: with_opts(a.sum(1), [Opt(OptOps.GROUP, 0, 2)], device="CUDA")
except ValueError as error: print(error)
