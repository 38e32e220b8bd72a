"""Loads our modules into every Python process of a program, and runs them when the program imports certain modules."""
