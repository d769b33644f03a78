import tinygrad
iterable=[_ for _ in range(10)]
tqdm=tinygrad.helpers.tqdm(iterable=iterable, desc="list iterations", unit='  iterations', unit_scale=True)
for n in range(len(iterable)): tqdm.update(n=1,close=True)
