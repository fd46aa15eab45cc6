"""Measures a program against changed copies of it (`verify`, `sweep`), in turns, and keeps the score of predictions."""
