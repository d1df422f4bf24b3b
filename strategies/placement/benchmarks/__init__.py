"""Published problems beside published results."""
