"""Runs a gateway Deployment for each QueryAPI: custom resources in, manifests and status out."""
