"""Finds the owners of tensors: the Python objects that keep them alive. `objects.py` reads an object without running
its code, `climb.py` finds the objects that refer to it, `naming.py` describes them, and `live.py` lists the tensors of
the process and the memory that their autograd graphs keep.
"""
