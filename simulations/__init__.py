"""Simulations of statements: does an interval hold, and a verdict err, as often as said?"""
