"""What keeps a tensor alive: `objects.py` reads an object without its own code, `climb.py` finds the objects that refer to it,
`naming.py` has the words, `live.py` the tensors of the process and what their autograd graphs keep.
"""
