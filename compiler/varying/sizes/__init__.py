"""Sizes that vary: what is declared, the points a model is looked at, formulas fitted to them, one
graph of several.
"""
