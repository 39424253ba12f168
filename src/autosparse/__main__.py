"""`python -m autosparse`, which `torchrun -m autosparse` needs as well."""

from autosparse.cli import main

if __name__ == "__main__":
    main()
