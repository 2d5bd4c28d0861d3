"""Explains one document: whether it equals its SELECT, and if not, why.

verdict      equal or not, why, what to do
standing     the document in one index
explanation  all of it, as data
"""
