"""Finds memory that is live at the peak but not needed there. `peak.py` finds the moment of the peak, and
`names.py` the variables that are dead (not read again) at that moment. `sole.py` finds the memory that only dead
variables keep alive, and `insertion.py` the place where a line that frees this memory can be inserted.
"""
