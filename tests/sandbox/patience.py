"""How long the sandbox's tests wait for what ends by itself."""

PATIENT_MS = 120_000  # more than a call that ends by itself takes on a busy machine
