"""Steps that GPUs compute: what they did as a program, run again with other times."""
