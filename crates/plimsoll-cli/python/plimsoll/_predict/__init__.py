"""The part of `plimsoll predict` inside the program's Python processes: `start.py` is the entry point, and
`watch.py` watches the process.
"""
