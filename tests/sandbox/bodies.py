"""Functions that more than one of the sandbox's tests call."""

GOOD = "def good(ctx):\n    return {'actions': [], 'state': ctx['n']}\n"
BAD = "def bad(ctx):\n    raise ValueError('no')\n"
HANG = "def hang(ctx):\n    t = ()\n    for i in range(60):\n        t = (t, t)\n    {t: 1}\n"
