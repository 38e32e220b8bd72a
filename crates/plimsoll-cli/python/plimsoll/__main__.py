"""``python -m plimsoll``: runs the program ``plimsoll`` of this environment."""

import os
import sys

from ._program import program
from .errors import PlimsollError

if __name__ == "__main__":
    try:
        path = program()
    except PlimsollError as why:
        sys.exit(f"error: {why}")
    os.execv(path, [path, *sys.argv[1:]])
