"""Finds memory that is live at the peak but not needed there: `peak.py` finds the moment, `sole.py` what only dead
variables keep alive, `names.py` which variables are dead, and `insertion.py` where a line that frees them can be
inserted.
"""
