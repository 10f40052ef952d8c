"""Commands: `atoll run`, `atoll bench`, `atoll compare` and the others, one file each."""
