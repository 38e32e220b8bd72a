"""What `plimsoll run` does inside the program's Python processes: `start.py` begins, `attend.py` has the process."""
