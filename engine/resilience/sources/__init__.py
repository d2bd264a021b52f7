"""Its modules import NumPy, which `arrays` does first and with one thread."""

from resilience import arrays as arrays
