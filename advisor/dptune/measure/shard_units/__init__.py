"""The units of fully_shard: what each sends in each pass, and what of it compute could overlap."""
