"""Runs on the Python side: written when it serves alone, read for `/history`, `/usage` and the command line."""
