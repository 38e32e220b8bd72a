"""The messages between our Python and the program `plimsoll`: names, fields, and the version."""
