"""Printed forms of graphs: a node goes in, text comes out (``DEBUG``, error messages, docs).

- ``node.py``: one line for one node; integer expressions and conditions in Python syntax.
- ``printer.py``: trees, tables, indented kernel graphs and numbered listings of programs.
"""
