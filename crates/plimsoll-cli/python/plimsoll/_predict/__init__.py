"""What `plimsoll predict` does inside the program's Python processes: `start.py` begins, `watch.py` has the process."""
