from tinygrad.tensor import Function, Tensor
class Sin(Function):
  def forward(self, x):
    self.x = x
    return x.sin()
  def backward(self, grad_output): return (1.5707963 - self.x).sin() * grad_output
x = Tensor([0.0, 1.0], requires_grad=True)
Sin.apply(x).sum().backward()
print(x.grad.numpy().round(4))
