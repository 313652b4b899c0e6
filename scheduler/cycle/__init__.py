"""One turn: take in, observe, decide, record, act."""
