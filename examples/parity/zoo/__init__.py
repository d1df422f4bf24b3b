"""Small models as ordinary users write them, each under every layout its size allows, against a plain PyTorch loop."""
