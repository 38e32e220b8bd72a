"""How our modules get into every Python process of a program, and run when the program imports others."""
