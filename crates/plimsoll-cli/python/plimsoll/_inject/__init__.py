"""Loads our modules into every Python process of a program, and calls their functions when the program imports certain
modules.
"""
