"""The part of `plimsoll run` inside the program's Python processes: `start.py` is the entry point, and `attend.py`
watches the process.
"""
