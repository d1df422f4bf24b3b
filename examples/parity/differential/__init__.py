"""Random models x random legal plans, run by gloo ranks and compared with one device: see `__main__`."""
