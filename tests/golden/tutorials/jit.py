from tinygrad import Tensor, TinyJit

a = Tensor([1,2])
b = Tensor([3,4])

@TinyJit
def run():
    result = a.dot(b).numpy()
    print(result)
    return result

run()  # 第一次运行，正常执行
run()  # 第二次运行，开始缓存
run()  # 第三次运行，使用缓存
