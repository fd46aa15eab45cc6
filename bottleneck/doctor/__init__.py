"""Check-up of a machine or a trace, beside the data path: facts are gathered, then judged check by check."""
