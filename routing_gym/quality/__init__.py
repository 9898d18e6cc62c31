"""Prediction of answer quality from recorded outcomes, and the tables that hold them (DESIGN 1, 4)."""
