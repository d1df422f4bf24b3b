"""The ways in which replicas on several hosts sum their gradients, predicted and measured on emulated links."""
