"""Writes everything that is derived from the contract. `python -m tailrace_contract.generate [--check]`."""
