"""What `plimsoll run` does inside the program's Python processes: `start.py` is the entry point, `attend.py` watches
the process.
"""
