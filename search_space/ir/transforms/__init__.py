"""Program -> Program: passes between a bound program and code."""
