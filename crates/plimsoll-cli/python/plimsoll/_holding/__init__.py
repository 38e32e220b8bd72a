"""Finds what keeps a tensor alive. `objects.py` reads an object without running its code, `climb.py` finds the objects that
refer to it, `naming.py` describes them, and `live.py` lists the tensors of the process and what their autograd graphs keep.
"""
