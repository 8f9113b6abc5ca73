"""Graphs of a decoder, built node by node from its spec."""
