"""Gates that drive real processes: differential, faults, figures."""
