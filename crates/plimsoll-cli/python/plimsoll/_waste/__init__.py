"""Memory that is live at the peak and not needed there: `peak.py` finds the moment, `sole.py` what only dead names keep alive, `names.py`
which names are dead, and `insertion.py` the line that frees them.
"""
