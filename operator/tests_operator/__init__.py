"""Tests of the operator. A package, because the folder above bears the name of a module of Python and must never be imported."""
