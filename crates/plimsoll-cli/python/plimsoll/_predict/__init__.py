"""What `plimsoll predict` does inside the program's Python processes: `start.py` is the entry point, `watch.py`
watches the process.
"""
