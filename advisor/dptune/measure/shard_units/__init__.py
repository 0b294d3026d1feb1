"""The units of FSDP: what each sends in each pass, and what of it compute could overlap."""
