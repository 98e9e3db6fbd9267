"""Figures: a frame goes in, a matplotlib Figure comes out; `style.py` has the one style."""
