"""What the tests on a real cluster need: kubectl, the testbed, the audit log, README's commands. IO: the cluster."""
