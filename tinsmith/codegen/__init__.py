"""The kernel compiler: a kernel's tensor graph and a renderer go in, source text and launch data come out.

``compile_kernel.py`` is the whole path; results are cached by content. Its stages, in order:

- ``lower/``: tensor graph to kernel graph; ``decompose/``: ops that the target lacks.
- ``planner/``: choice of a list of opts by cost; ``opt.py``: the opts; ``transform/``: what each opt does.
- ``kernel.py``, ``kernel_graph.py``: the kernel graph with the opts applied so far.
- ``emit/``: the linearizer: kernel graph to linear program; ``render/``: linear program to source text.
- ``launch.py``: the result: ``Launch`` and ``KernelProgram``.
"""
